"""What was probably meant: sentences about fields and values that Triton's configuration schema does not have."""

from collections.abc import Sequence
from difflib import get_close_matches

from google.protobuf.descriptor import Descriptor, EnumDescriptor

from conch.triton_messages import ModelConfig as ConfigMessage
from conch.triton_messages import model_config_pb2

# Names that other tools give to Triton's datatypes.
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
    """Say that a message has no such field, and which one is near or where the name does belong.

    `message_type` is protobuf's full name, such as `inference.ModelInput`.
    """
    said = f"unknown field '{field}' in {_short(message_type)}"
    descriptor: Descriptor = model_config_pb2.DESCRIPTOR.pool.FindMessageTypeByName(message_type)
    known = [each.name for each in descriptor.fields]
    if near := get_close_matches(field, known, n=1):
        return f"{said}; did you mean '{near[0]}'?"
    if owner := _owner(field):
        return f"{said}; it is a field of '{owner}'"
    return f"{said}; it has: {', '.join(known)}"


def unknown_value(enum_type: str, value: str) -> str:
    """Say that an enum has no such value, and which are allowed. `value` is as written, quotes included."""
    descriptor: EnumDescriptor = model_config_pb2.DESCRIPTOR.pool.FindEnumTypeByName(enum_type)
    known = [each.name for each in descriptor.values]
    bare = value.strip("\"'")
    said = f"unknown value {value} of {_short(enum_type)}"
    if bare in known:
        return f"{said}; it is written without quotes: {bare}"
    if near := _near(bare, known):
        return f"{said}; did you mean {near}? Allowed: {', '.join(known)}"
    return f"{said}; allowed: {', '.join(known)}"


def _near(value: str, known: Sequence[str]) -> str:
    """The value whose last word is this one (`FP32`, `gpu`), or that is meant by it, else the nearest by spelling."""
    wanted = value.upper()
    alias = _ALIASES.get(wanted.removeprefix("TYPE_"), "")
    if alias in known:
        return alias
    by_ending = [name for name in known if name.endswith(f"_{wanted}") or name == wanted]
    return next(iter(by_ending or get_close_matches(wanted, known, n=1)), "")


def _owner(field: str) -> str:
    """Name the field of ModelConfig whose message, directly, has a field of this name."""
    for outer in ConfigMessage.DESCRIPTOR.fields:
        if outer.message_type is not None and field in outer.message_type.fields_by_name:
            return str(outer.name)
    return ""


def _short(full_name: str) -> str:
    return full_name.removeprefix("inference.")
