"""Parse clients' JSON and read its members, with Triton's error messages.

Errors of both parsers are translated to RapidJSON's, which Triton's clients match.

orjson parses strict JSON. A slower parser accepts what Triton accepts too: a byte order mark, the literals NaN and
Infinity, and strings that are not UTF-8, which are valid only as elements of BYTES tensors. The last of duplicate keys
applies.
"""

import json
import re
from math import isinf
from typing import Any, Final

import orjson

from conch.base.errors import InvalidRequest
from conch.domain.tensor import Buffer

MAX_UINT64 = 2**64 - 1
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_MAX_DIGITS = 20  # of 64 bits
_NO_PARAMETERS: dict[str, Any] = {}


def parse(text: Buffer) -> Any:
    """Return the value of a JSON text. Raises InvalidRequest with the reason and the byte offset.

    Strings may contain surrogates for bytes that are not UTF-8 (`surrogateescape`); `text` refuses them.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        problem = error
    raw = bytes(text)
    if raw.startswith(_BYTE_ORDER_MARK) or b"NaN" in raw or b"Infinity" in raw or "UTF-8" in problem.msg:
        return _parse_leniently(raw.removeprefix(_BYTE_ORDER_MARK))
    raise _malformed(problem.msg, problem.pos, raw)


def _parse_leniently(raw: bytes) -> Any:
    try:
        return json.loads(raw.decode("utf-8", "surrogateescape"), parse_int=_integer, parse_float=_finite)
    except json.JSONDecodeError as error:
        raise _malformed(error.msg, error.pos, raw) from None
    except RecursionError:
        raise InvalidRequest("failed to parse the request JSON buffer: nested too deeply") from None
    except ValueError as error:
        raise InvalidRequest(f"failed to parse the request JSON buffer: {error}") from None


def _integer(digits: str) -> int | float:
    """Parse an integer as orjson does: more than 64 bits are a float."""
    if len(digits) <= _MAX_DIGITS and -(2**63) <= (value := int(digits)) <= MAX_UINT64:
        return value
    return _finite(digits)


def _finite(digits: str) -> float:
    value = float(digits)
    if isinf(value):
        raise ValueError(f"number too big to be stored in a double: {shown(digits)}")
    return value


def _malformed(reason: str, position: int, raw: bytes) -> InvalidRequest:
    return InvalidRequest(f"failed to parse the request JSON buffer: {describe(reason, position, raw)}")


def member(parent: Any, key: str) -> Any:
    """Return a required member; `parent` may be any JSON value."""
    if type(parent) is dict and key in parent:
        return parent[key]
    raise InvalidRequest(f"Unable to parse '{key}': attempt to access non-existing object member '{key}'")


def text(value: Any, key: str) -> str:
    """Check for a string of valid Unicode, and return it."""
    if type(value) is not str:
        raise mistyped(key, "string", value)
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"Unable to parse '{key}': {shown(value)} is not valid UTF-8") from None
    return value


def array(value: Any, key: str) -> list[Any]:
    """Check for an array, and return it."""
    if type(value) is not list:
        raise mistyped(key, "array", value)
    return value


def boolean(value: Any, key: str) -> bool:
    """Check for a boolean, and return it; numbers are invalid."""
    if type(value) is not bool:
        raise mistyped(key, "boolean", value)
    return value


def unsigned(value: Any, key: str) -> int:
    """Check for an integer of 64 bits, 0 or above, and return it."""
    if type(value) is not int or not 0 <= value <= MAX_UINT64:
        raise mistyped(key, "unsigned-integer", value)
    return value


def parameters_of(parent: dict[str, Any]) -> dict[str, Any]:
    """Return the `parameters` object of a request, an input or an output; an empty one by default."""
    found = parent.get("parameters", _NO_PARAMETERS)
    if type(found) is not dict:
        raise InvalidRequest(
            "failed to get request params.: attempt to get members for non-object; "
            f"'parameters' is an object, not {shown(found)}"
        )
    return found


def key_at_end(error: InvalidRequest, key: str) -> InvalidRequest:
    """Reword an error of this module for the endpoints where Triton's message does not begin with the key."""
    text = error.message.removeprefix(f"Unable to parse '{key}': ").removeprefix("failed to get request params.: ")
    return InvalidRequest(f"{text} ('{key}')")


def mistyped(key: str, expected: str, value: Any) -> InvalidRequest:
    """Return the error for a member of the wrong type."""
    return InvalidRequest(
        f"Unable to parse '{key}': attempt to access JSON non-{expected} as {expected}; it is {shown(value)}"
    )


def shown(value: Any) -> str:
    """Return a JSON value for a message: the kind of a container, or a scalar truncated to 60 characters."""
    if type(value) is dict:
        return "an object"
    if type(value) is list:
        return "an array"
    if value is None or type(value) is bool:
        return json.dumps(value)
    if type(value) is str and len(value) > 60:
        return f"{value[:60]!r}…"
    return repr(value)


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
