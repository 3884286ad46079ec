"""What is wrong with the fields of a configuration: unknown names and values, and values of other types."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from conch.base.control_characters import is_utf8
from conch.base.suggestion import closest, did_you_mean
from conch.domain.config.size_limits import shortened
from conch.domain.triton_messages import ModelConfig as ConfigMessage
from conch.domain.triton_messages import model_config_pb2

# Names of other tools for Triton's datatypes.
_ALIASES = {
    "FLOAT": "TYPE_FP32",
    "FLOAT16": "TYPE_FP16",
    "FLOAT32": "TYPE_FP32",
    "FLOAT64": "TYPE_FP64",
    "HALF": "TYPE_FP16",
    "DOUBLE": "TYPE_FP64",
    "BFLOAT16": "TYPE_BF16",
    "INT": "TYPE_INT32",
    "LONG": "TYPE_INT64",
    "BYTES": "TYPE_STRING",
}
_INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
_FLOATS = (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE)
_MAX_DIGITS = 20


def unknown_field(message_type: str, field: str) -> str:
    """Return an error for an unknown field, with a similar field or the message that has it.

    `message_type` is protobuf's full name, such as `inference.ModelInput`.
    """
    error = f"unknown field '{field}' in {_short(message_type)}"
    descriptor: Descriptor = model_config_pb2.DESCRIPTOR.pool.FindMessageTypeByName(message_type)
    known = [field.name for field in descriptor.fields]
    if hint := did_you_mean(field, known):
        return error + hint
    if owner := _owner(field):
        return f"{error}; it is a field of '{owner}'"
    return f"{error}; known fields: {', '.join(known)}"


def unknown_value(enum_type: str, value: str) -> str:
    """Return an error for an unknown value of an enum, with the allowed ones. `value` includes quotes, if any."""
    descriptor: EnumDescriptor = model_config_pb2.DESCRIPTOR.pool.FindEnumTypeByName(enum_type)
    known = [value.name for value in descriptor.values]
    bare = value.strip("\"'")
    error = f"unknown value {value} of {_short(enum_type)}"
    if bare in known:
        return f"{error}; write it without quotes: {bare}"
    if near := _near(bare, known):
        return f"{error}; did you mean {near}? Allowed: {', '.join(known)}"
    return f"{error}; allowed: {', '.join(known)}"


def _near(value: str, known: Sequence[str]) -> str:
    """Return the value for an alias, or with this last word (`FP32`, `gpu`), or else the nearest by spelling."""
    upper = value.upper()
    alias = _ALIASES.get(upper.removeprefix("TYPE_"), "")
    if alias in known:
        return alias
    by_ending = [name for name in known if name.endswith(f"_{upper}") or name == upper]
    return by_ending[0] if by_ending else closest(upper, known) or ""


def _owner(field: str) -> str:
    """Return the field of ModelConfig whose message has a field of this name, "" if there is none."""
    for outer in ConfigMessage.DESCRIPTOR.fields:
        if outer.message_type is not None and field in outer.message_type.fields_by_name:
            return str(outer.name)
    return ""


def _short(full_name: str) -> str:
    return full_name.removeprefix("inference.")


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
    return "" if isinstance(value, str) and is_utf8(value) else "a string"


def _integer(value: Any) -> int | None:
    if type(value) is int:
        return value
    if type(value) is float and value.is_integer():
        return int(value)
    if isinstance(value, str) and value.isascii() and value.removeprefix("-").isdecimal():
        return int(value) if len(value) <= _MAX_DIGITS else 2**64
    return None


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
        return f"'{text}'" if is_utf8(text) else ascii(text)
    return shortened(json.dumps(value))
