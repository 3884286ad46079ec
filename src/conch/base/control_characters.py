"""Characters of untrusted names: terminals execute control characters, which forge lines of logs; UTF-8 lacks some."""

import re

# C0, DEL and C1, the line and paragraph separators, and the marks that change the direction of text.
_CONTROL = re.compile("[\\x00-\\x1f\\x7f-\\x9f\u2028-\u202e\u2066-\u2069]")


def has_control_characters(name: str) -> bool:
    """Whether a name contains a character that is not shown but interpreted."""
    return _CONTROL.search(name) is not None


def printable(text: str) -> str:
    """Return a text with U+FFFD in place of control characters, line breaks included."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def printable_lines(text: str) -> str:
    """Return a text as `printable`, but with its line breaks and tabs."""
    return _CONTROL.sub(lambda match: match[0] if match[0] in "\n\t" else "\N{REPLACEMENT CHARACTER}", text)


def is_utf8(text: str) -> bool:
    """Return whether a text, such as the name of a file, can be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
