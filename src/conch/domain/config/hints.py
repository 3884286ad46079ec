"""Suggestions for fields and values that Triton's configuration schema does not have."""

from collections.abc import Sequence

from google.protobuf.descriptor import Descriptor, EnumDescriptor

from conch.base.suggestion import closest, did_you_mean
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


def unknown_field(message_type: str, field: str) -> str:
    """Return an error for an unknown field, with a similar field or the message that has it.

    `message_type` is protobuf's full name, such as `inference.ModelInput`.
    """
    error = f"unknown field '{field}' in {_short(message_type)}"
    descriptor: Descriptor = model_config_pb2.DESCRIPTOR.pool.FindMessageTypeByName(message_type)
    known = [each.name for each in descriptor.fields]
    if hint := did_you_mean(field, known):
        return error + hint
    if owner := _owner(field):
        return f"{error}; it is a field of '{owner}'"
    return f"{error}; known fields: {', '.join(known)}"


def unknown_value(enum_type: str, value: str) -> str:
    """Return an error for an unknown value of an enum, with the allowed ones. `value` includes quotes, if any."""
    descriptor: EnumDescriptor = model_config_pb2.DESCRIPTOR.pool.FindEnumTypeByName(enum_type)
    known = [each.name for each in descriptor.values]
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
