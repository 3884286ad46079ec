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

from conch.base.errors import ConfigError
from conch.domain.config.field_errors import find_mismatch, shown, unknown_field, unknown_value
from conch.domain.config.size_limits import shortened
from conch.domain.triton_messages import ModelConfig as ConfigMessage

_WIDE_INTEGERS = frozenset({FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64})

_UNKNOWN_FIELD = re.compile(r'Message type "(?P<type>[^"]+)" has no field named "(?P<field>.*?)" at "(?P<at>[^"]+)"')
_UNKNOWN_VALUE = re.compile(r"Invalid enum value (?P<value>.*?) for enum type (?P<type>[\w.]+) at (?P<at>\S+?)\.*$")
_SEVERAL_CHOICES = "oneof fields"
# Of protobuf's error messages, which quote whole values.
_MAX_DETAIL_CHARS = 2000
_MAX_DIGITS = 4300  # which Python converts


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
    except Exception as error:  # protobuf lets errors of any type escape where a value has an unexpected type
        raise ConfigError(f"{where}: {_explain(error, document)}") from error
    return message


def parse_json(text: str, where: str) -> ConfigMessage:
    """Return the message of a JSON text, the `config` parameter of a load. Raises ConfigError."""
    try:
        document = json.loads(text, parse_int=_integer)
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = ascii(error.object[error.start])[1:-1]
        raise ConfigError(f"{where}: not valid JSON: a string has half of a surrogate pair, {half}") from None
    except RecursionError:
        raise ConfigError(f"{where}: not valid JSON: nested too deeply") from None
    except ValueError as error:
        raise ConfigError(f"{where}: not valid JSON: {shortened(str(error))}") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{where}: expected a JSON object with the fields of ModelConfig, got {shown(document)}")
    return from_document(document, where)


def _integer(digits: str) -> int:
    """Parse an integer. Raises ValueError with a message for clients."""
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"an integer of {len(digits)} digits")
    return int(digits)


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


def _explain(error: Exception, document: Mapping[str, Any]) -> str:
    """Return place and cause of an error of protobuf, with a suggestion. Most of its messages are those of Python."""
    if mismatch := find_mismatch(document, ConfigMessage.DESCRIPTOR):
        return mismatch
    detail = str(error)
    if len(detail) > _MAX_DETAIL_CHARS:
        detail = f"{detail[: _MAX_DETAIL_CHARS // 2]}…{detail[-_MAX_DETAIL_CHARS // 2 :]}"
    if match := _UNKNOWN_FIELD.search(detail):
        at, field = match["at"], shortened(match["field"])
        return f"{at}: {unknown_field(match['type'], field)}".removeprefix("ModelConfig: ")
    if match := _UNKNOWN_VALUE.search(detail):
        return f"{match['at']}: {unknown_value(match['type'], shortened(match['value']))}"
    return detail.rstrip(".") if _SEVERAL_CHOICES in detail else "the fields do not fit ModelConfig"
