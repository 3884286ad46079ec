"""Find the first value of a JSON document that does not fit its field of a protobuf message, and say what would."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from conch.domain.config.limits import shortened

_INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
_FLOATS = (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE)
_MAX_DIGITS = 20


def find_mismatch(document: Mapping[str, Any], descriptor: Descriptor) -> str:
    """Return "<path>: expected …, got …" for the first value of the wrong type or range; "" if there is none.

    Unknown fields are ignored.
    """
    return next(_in_message(document, descriptor, ""), "")


def _in_message(value: Any, descriptor: Descriptor, at: str) -> Iterator[str]:
    if not isinstance(value, Mapping):
        yield _wrong(at, "an object", value)
        return
    fields = {name: field for field in descriptor.fields for name in (field.name, field.json_name)}
    for key, inner in value.items():
        field = fields.get(key)
        if field is None or inner is None:  # null is the default
            continue
        yield from _in_field(inner, field, f"{at}.{key}" if at else key)


def _in_field(value: Any, field: FieldDescriptor, at: str) -> Iterator[str]:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        if not isinstance(value, Mapping):
            yield _wrong(at, "an object", value)
            return
        for key, inner in value.items():
            yield from _in_value(key, kind.fields_by_name["key"], f"{at}: key")
            yield from _in_value(inner, kind.fields_by_name["value"], f"{at}['{shortened(key)}']")
    elif field.is_repeated:
        if not isinstance(value, list):
            yield _wrong(at, "a list", value)
            return
        for position, inner in enumerate(value):
            yield from _in_value(inner, field, f"{at}[{position}]")
    else:
        yield from _in_value(value, field, at)


def _in_value(value: Any, field: FieldDescriptor, at: str) -> Iterator[str]:
    if field.message_type is not None:
        yield from _in_message(value, field.message_type, at)
        return
    expected = _expected(value, field)
    if expected:
        yield _wrong(at, expected, value)


def _expected(value: Any, field: FieldDescriptor) -> str:
    """Return what is expected instead of a value; "" if it fits."""
    kind = field.cpp_type
    if kind in _INTEGERS:
        low, high = _INTEGERS[kind]
        number = _integer(value)
        if number is None:
            return "an integer"
        return "" if low <= number <= high else f"an integer from {low} to {high}"
    if kind in _FLOATS:
        return "" if type(value) in (int, float) or _is_number(value) else "a number"
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return "" if isinstance(value, bool) else "true or false"
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        number = _integer(value)
        named = isinstance(value, str) if number is None else abs(number) < 2**31
        return "" if named else "the name of a value"
    return "" if isinstance(value, str) and _is_unicode(value) else "a string"


def _integer(value: Any) -> int | None:
    if type(value) is int:
        return value
    if type(value) is float and value.is_integer():
        return int(value)
    if isinstance(value, str) and value.isascii() and value.removeprefix("-").isdecimal():
        return int(value) if len(value) <= _MAX_DIGITS else 2**64
    return None


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return isinstance(value, str) and value.isascii()


def _wrong(at: str, expected: str, value: Any) -> str:
    return f"{at}: expected {expected}, got {shown(value)}"


def shown(value: Any) -> str:
    """Return a JSON value for a message, a list or an object by its kind."""
    if isinstance(value, Mapping | list):
        return "a list" if isinstance(value, list) else "an object"
    if isinstance(value, str):
        text = shortened(value)
        return f"'{text}'" if _is_unicode(text) else ascii(text)
    return shortened(json.dumps(value))
