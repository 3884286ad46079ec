"""Names of the enum values in Triton's messages."""

from typing import Any

from conch.base.errors import ConfigError
from conch.domain.tensor import BYTES
from conch.domain.triton_messages import model_config_pb2 as schema


def datatype_name(number: int) -> str:
    """Return the wire name of a `DataType`, "" for TYPE_INVALID. Raises ConfigError for an unknown number."""
    name = enum_name(schema.DataType, number)
    return {"TYPE_STRING": BYTES, "TYPE_INVALID": ""}.get(name, name.removeprefix("TYPE_"))


def enum_name(enum: Any, number: int) -> str:
    """Return the name of an enum value. Raises ConfigError for an unknown number."""
    try:
        return str(enum.Name(number))
    except ValueError:
        raise ConfigError(
            f"{number} is not a value of {enum.DESCRIPTOR.name}; allowed: {', '.join(enum.keys())}"
        ) from None
