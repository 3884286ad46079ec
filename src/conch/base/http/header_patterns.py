"""Translate regular expressions for header names from RE2's syntax to Python's.

They ignore case by default, as in Triton. Syntax that RE2 does not have, such as look-ahead, is refused, and so is
syntax that Python does not have.
"""

import re

_CLASSES = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "digit": "0-9",
    "lower": "a-z",
    "punct": r"!-/:-@\[-`{-~",
    "space": r"\t\n\v\f\r ",
    "upper": "A-Z",
    "word": r"0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
}
_FLAGS = re.compile(r"\(\?([imsU]*)(?:-([imsU]+))?([:)])")
_ESCAPES = {"z": r"\Z"}
_NOT_IN_RE2 = {"1", "2", "3", "4", "5", "6", "7", "8", "9", "Z"}
_NOT_SUPPORTED = {"p", "P", "C"}


def compile_pattern(text: str) -> re.Pattern[str]:
    """Return a compiled pattern for `search`. Raises ValueError with the reason."""
    try:
        return re.compile(_Translation(text).python(), re.IGNORECASE | re.ASCII)
    except re.error as error:
        raise ValueError(f"{error.msg} at {error.pos}" if error.pos is not None else error.msg) from None


class _Translation:
    """State of the translation of one pattern."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._out: list[str] = []
        # For each open group: the number of groups that flags opened in it, and whether all are at its start.
        self._scopes: list[int] = [0]
        self._at_start = True
        self._spans = [True]

    def python(self) -> str:
        position = 0
        while position < len(self._text):
            position = self._step(position)
        self._out.append(")" * self._scopes[0])
        return "".join(self._out)

    def _step(self, position: int) -> int:
        """Translate the token at a position. Return the position after it."""
        mark = self._text[position]
        if mark == "(":
            return self._group(position)
        if mark == ")":
            if len(self._scopes) > 1:
                self._out.append(")" * self._scopes.pop())
                self._spans.pop()
        elif mark == "|" and not self._spans[-1]:
            raise ValueError(f"alternatives after flags in the middle of a group are not supported, at {position}")
        elif mark == "\\":
            return self._escape(position)
        elif mark == "[":
            return self._set(position)
        self._at_start = False
        self._out.append(mark)
        if mark in "*+?}" and self._text[position + 1 : position + 2] == "+":
            raise ValueError(f"RE2 has no possessive repetition, at {position}")
        return position + 1

    def _group(self, position: int) -> int:
        rest = self._text[position:]
        flags = _FLAGS.match(rest)
        if flags is not None and flags[0] != "(?:":
            return self._flags(position, flags)
        opening = "("
        if rest.startswith("(?"):
            opening = next((form for form in ("(?:", "(?P<") if rest.startswith(form)), "")
            if not opening and rest.startswith("(?<") and rest[3:4] not in ("=", "!"):
                self._open("(?P<")
                return position + 3
            if not opening:
                raise ValueError(f"RE2 has no '{rest[:3]}', at {position}")
        self._open(opening)
        return position + len(opening)

    def _open(self, opening: str) -> None:
        self._out.append(opening)
        self._scopes.append(0)
        self._spans.append(True)
        self._at_start = True

    def _flags(self, position: int, flags: re.Match[str]) -> int:
        on, off, end = flags[1] or "", flags[2] or "", flags[3]
        if "U" in on + off:
            raise ValueError(f"the flag U is not supported, at {position}")
        opening = f"(?{on}{'-' + off if off else ''}:"
        if end == ":":
            self._open(opening)
        else:
            self._out.append(opening)
            self._scopes[-1] += 1
            self._spans[-1] = self._spans[-1] and self._at_start
        return position + len(flags[0])

    def _escape(self, position: int) -> int:
        self._at_start = False
        mark = self._text[position + 1 : position + 2]
        if mark == "Q":
            quoted, _, _ = self._text[position + 2 :].partition("\\E")
            self._out.append(re.escape(quoted))
            return position + 2 + len(quoted) + 2
        if mark in _NOT_IN_RE2:
            raise ValueError(f"RE2 has no '\\{mark}', at {position}")
        if mark in _NOT_SUPPORTED:
            raise ValueError(f"'\\{mark}' is not supported, at {position}")
        self._out.append(_ESCAPES.get(mark, "\\" + mark))
        return position + 2

    def _set(self, position: int) -> int:
        """Translate a set of characters, with its named classes."""
        self._at_start = False
        match = re.compile(r"\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\]").match(self._text, position)
        if match is None:
            raise ValueError(f"unterminated character set, at {position}")

        def named(class_match: re.Match[str]) -> str:
            if class_match[1] not in _CLASSES:
                raise ValueError(f"'[:{class_match[1]}:]' is not supported, at {position}")
            return _CLASSES[class_match[1]]

        inside = re.sub(r"\[:(\^?\w+):\]", named, match[0][1:-1])
        self._out.append("[" + re.sub(r"(?<!\\)\[", r"\\[", inside) + "]")
        return match.end()
