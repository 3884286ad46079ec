"""Convert a configuration between JSON values, which clients see and backends edit, and Triton's `ModelConfig` message.

The document has the message's field names, every scalar default, enums by name, 64-bit integers as numbers and maps as
objects; unset messages are absent. Triton's config endpoint returns the same.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from conch.errors import ConfigError
from conch.repository.config.hints import unknown_field, unknown_value
from conch.repository.config.limits import MAX_QUOTED_CHARS, shortened
from conch.triton_messages import ModelConfig as ConfigMessage

_WIDE_INTEGERS = frozenset({FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64})

_UNKNOWN_FIELD = re.compile(r'Message type "(?P<type>[^"]+)" has no field named "(?P<field>.*?)" at "(?P<at>[^"]+)"')
_UNKNOWN_VALUE = re.compile(r"Invalid enum value (?P<value>.*?) for enum type (?P<type>[\w.]+) at (?P<at>\S+?)\.*$")
_NO_INTEGER = re.compile(r"invalid literal for int\(\) with base 10: |Couldn't parse integer: ")
# Of protobuf's error messages, which quote whole values.
_MAX_DETAIL_CHARS = 2000
_NESTED = re.compile(r"Failed to parse (\w+) field: ")


def to_document(message: ConfigMessage) -> dict[str, Any]:
    """Return the configuration as JSON values, with fields in the order of their declaration."""
    values = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return _in_order(values, message.DESCRIPTOR)


def from_document(document: Mapping[str, Any], where: str) -> ConfigMessage:
    """Return the message of a document, the inverse of `to_document`; absent fields are unset.

    Raises ConfigError, beginning with `where`, if a field is unknown or has the wrong type.
    """
    message = ConfigMessage()
    try:
        json_format.ParseDict(dict(document), message)
    # protobuf lets other exceptions escape where a value has an unexpected type.
    except (json_format.Error, TypeError, AttributeError, ValueError, OverflowError, RecursionError) as error:
        raise ConfigError(f"{where}: {_explain(str(error))}") from error
    return message


def parse_json(text: str, where: str) -> ConfigMessage:
    """Return the message of a JSON text, the `config` parameter of a load. Raises ConfigError."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not valid JSON: {shortened(str(error))}") from error
    if not isinstance(document, dict):
        found = type(document).__name__
        raise ConfigError(f"{where}: expected a JSON object with the fields of ModelConfig, got {found}")
    return from_document(document, where)


def _in_order(values: Mapping[str, Any], descriptor: Descriptor) -> dict[str, Any]:
    return {field.name: _value(values[field.name], field) for field in descriptor.fields if field.name in values}


def _value(value: Any, field: FieldDescriptor) -> Any:
    """Convert protobuf's JSON, which has 64-bit integers as strings and fields in the order in which they were set."""
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        # Maps are unordered; sorting makes documents of equal configurations equal.
        return {key: _one(value[key], kind.fields_by_name["value"]) for key in sorted(value)}
    if field.is_repeated:
        return [_one(item, field) for item in value]
    return _one(value, field)


def _one(value: Any, field: FieldDescriptor) -> Any:
    if field.message_type is not None:
        return _in_order(value, field.message_type)
    return int(value) if field.cpp_type in _WIDE_INTEGERS else value


def _explain(detail: str) -> str:
    """Reduce protobuf's message to place and cause, and add a suggestion."""
    if len(detail) > _MAX_DETAIL_CHARS:
        detail = f"{detail[: _MAX_DETAIL_CHARS // 2]}…{detail[-_MAX_DETAIL_CHARS // 2 :]}"
    if match := _UNKNOWN_FIELD.search(detail):
        at, field = match["at"], shortened(match["field"])
        return f"{at}: {unknown_field(match['type'], field)}".removeprefix("ModelConfig: ")
    if match := _UNKNOWN_VALUE.search(detail):
        return f"{match['at']}: {unknown_value(match['type'], shortened(match['value']))}"
    cause = _NO_INTEGER.sub("expected an integer, got ", detail.partition("\n")[0])
    cause = _NESTED.sub(r"\1: ", cause).rstrip(".")
    return cause if len(cause) <= 2 * MAX_QUOTED_CHARS else shortened(cause)
