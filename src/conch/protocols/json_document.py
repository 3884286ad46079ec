"""Parse clients' JSON and read its members, with Triton's error messages.

orjson parses strict JSON. A slower parser accepts what Triton accepts too: a byte order mark, the literals NaN and
Infinity, and strings that are not UTF-8, which are valid only as elements of BYTES tensors. The last of duplicate keys
applies.
"""

import json
from math import isinf
from typing import Any

import orjson

from conch.base.errors import InvalidRequest
from conch.domain.tensor import Buffer
from conch.protocols.json_errors import describe

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
        reason, position = error.msg, error.pos  # the error itself would be in a cycle with this frame
    raw = bytes(text)
    if raw.startswith(_BYTE_ORDER_MARK) or b"NaN" in raw or b"Infinity" in raw or "UTF-8" in reason:
        return _parse_leniently(raw.removeprefix(_BYTE_ORDER_MARK))
    raise _malformed(reason, position, raw)


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
    parameters = parent.get("parameters", _NO_PARAMETERS)
    if type(parameters) is not dict:
        raise InvalidRequest(
            "failed to get request params.: attempt to get members for non-object; "
            f"'parameters' is an object, not {shown(parameters)}"
        )
    return parameters


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
