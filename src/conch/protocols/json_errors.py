"""Translate errors of orjson and the standard library's JSON parser to RapidJSON's, which Triton's clients match.

Runs on the error path only.
"""

import re
from typing import Final

_INVALID_VALUE: Final = "Invalid value."
_NO_NAME: Final = "Missing a name for object member."
_NO_COLON: Final = "Missing a colon after a name of object member."
_NO_COMMA_IN_OBJECT: Final = "Missing a comma or '}' after an object member."
_NO_COMMA_IN_ARRAY: Final = "Missing a comma or ']' after an array element."
_BAD_ESCAPE: Final = "Invalid escape character in string."
_EMPTY: Final = "The document is empty."

# Reasons of orjson and of the standard library's parser with one counterpart at the same position.
_COUNTERPARTS: Final = {
    "unexpected content after document": "The document root must not be followed by other values.",
    "Extra data": "The document root must not be followed by other values.",
    "unexpected character, expected a JSON value": _INVALID_VALUE,
    "Expecting value": _INVALID_VALUE,
    "no digit after sign": _INVALID_VALUE,
    "no digit after decimal point": "Miss fraction part in number.",
    "no digit after exponent sign": "Miss exponent in number.",
    "unexpected character, expected a string key": _NO_NAME,
    "Expecting property name enclosed in double quotes": _NO_NAME,
    "unexpected character, expected ':' after key": _NO_COLON,
    "Expecting ':' delimiter": _NO_COLON,
    "unexpected character, expected ',' or '}'": _NO_COMMA_IN_OBJECT,
    "unexpected character, expected ',' or ']'": _NO_COMMA_IN_ARRAY,
    "unexpected control character in string": _BAD_ESCAPE,
    "invalid escaped sequence in string": _BAD_ESCAPE,
    "Invalid control character at": _BAD_ESCAPE,
    "no low surrogate in string": "The surrogate pair in string is invalid.",
    "invalid low surrogate in string": "The surrogate pair in string is invalid.",
    "invalid high surrogate in string": "The surrogate pair in string is invalid.",
    "number is infinity when parsed as double": "Number too big to be stored in double.",
}
_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*"?|[\[\]{},:]|[^\s"\[\]{},:]+', re.DOTALL)
_CLOSED_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
# Of longer texts only the position is reported, because the scan is a loop in Python.
_MAX_SCANNED_BYTES: Final = 64 * 1024


def describe(reason: str, position: int, text: bytes) -> str:
    """Return "<RapidJSON's reason> at <offset> (<reason>)" for a parser's `reason` and `position` in `text`."""
    translated, offset = _translate(reason, position, text)
    original = reason.rstrip(".")
    return f"{translated} at {offset}" + ("" if original == translated.rstrip(".") else f" ({original})")


def _translate(reason: str, position: int, text: bytes) -> tuple[str, int]:
    if not text.strip(b" \t\r\n") or text.startswith(b"\0"):
        return _EMPTY, len(text) if not text.startswith(b"\0") else 0
    counterpart = _COUNTERPARTS.get(reason)
    if counterpart is not None:
        if counterpart is _BAD_ESCAPE and text[position : position + 2] == b"\\u":
            return "Incorrect hex digit after \\u escape in string.", position
        return counterpart, position
    if reason == "trailing comma is not allowed":
        rest = text[position + 1 :].lstrip(b" \t\r\n")
        return (_NO_NAME if rest.startswith(b"}") else _INVALID_VALUE), len(text) - len(rest)
    if reason == "number with leading zero is not allowed":
        return _missing_comma(text[:position]), position + 1
    if reason.startswith("invalid literal"):
        return _INVALID_VALUE, position + _matching(text[position:])
    if position >= len(text) or reason.startswith("Unterminated string"):
        return _truncated(text), len(text)
    if reason == "Expecting ',' delimiter":
        return _missing_comma(text[:position]), position
    return reason.rstrip(".") + ".", position


def _matching(text: bytes) -> int:
    """Return the length of the longest correct prefix of a misspelt `true`, `false` or `null`."""
    for literal in (b"true", b"false", b"null"):
        if text[:1] == literal[:1]:
            return next((at for at in range(len(literal)) if text[at : at + 1] != literal[at : at + 1]), len(literal))
    return 0


def _missing_comma(text: bytes) -> str:
    containers, _ = _state(text)
    return _NO_COMMA_IN_ARRAY if containers.endswith(b"[") else _NO_COMMA_IN_OBJECT


def _truncated(text: bytes) -> str:
    """Return the reason for a text that ends too early."""
    containers, expected = _state(text)
    if expected:
        return expected
    return _NO_COMMA_IN_ARRAY if containers.endswith(b"[") else _NO_COMMA_IN_OBJECT


def _state(text: bytes) -> tuple[bytes, str]:
    """Return the open containers at the end of a text, and the reason of an error there, "" after a value."""
    if len(text) > _MAX_SCANNED_BYTES:
        return b"", _INVALID_VALUE
    containers = bytearray()
    expected = _INVALID_VALUE
    for match in _TOKEN.finditer(text):
        token = match.group()
        first = token[:1]
        if first in (b"{", b"["):
            containers += first
            expected = _NO_NAME if first == b"{" else _INVALID_VALUE
        elif first in (b"}", b"]"):
            del containers[-1:]
            expected = ""
        elif first == b",":
            expected = _NO_NAME if containers.endswith(b"{") else _INVALID_VALUE
        elif first == b":":
            expected = _INVALID_VALUE
        elif first == b'"':
            if _CLOSED_STRING.fullmatch(token) is None:
                expected = "Missing a closing quotation mark in string."
            else:
                expected = _NO_COLON if expected is _NO_NAME else ""
        else:
            whole = token in (b"true", b"false", b"null", b"NaN", b"Infinity") or token[:1] in b"-0123456789"
            expected = "" if whole else _INVALID_VALUE
    return bytes(containers), expected
