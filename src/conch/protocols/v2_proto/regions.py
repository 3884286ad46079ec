"""Shared memory in protobuf: parameters of tensors."""

from typing import Any, TypeAlias

from conch.base.errors import InvalidRequest
from conch.protocols.regions import BYTE_SIZE, OFFSET, REGION, Window, missing_region, missing_size

# `InferInputTensor` or `InferRequestedOutputTensor`, which protobuf creates at run time.
TensorMessage: TypeAlias = Any


def read_window(entry: TensorMessage) -> Window | None:
    """Return the shared memory in a tensor's parameters, if any. Raises InvalidRequest."""
    parameters = entry.parameters
    if REGION not in parameters:
        error = missing_region(parameters, entry.name)
        if error is not None:
            raise error
        return None
    region = str(_value(entry, REGION, "string_param"))
    if BYTE_SIZE not in parameters:
        raise missing_size(entry.name)
    offset = int(_value(entry, OFFSET, "int64_param")) if OFFSET in parameters else 0
    return Window(region, offset, int(_value(entry, BYTE_SIZE, "int64_param")))


def _value(entry: TensorMessage, key: str, kind: str) -> Any:
    parameter = entry.parameters[key]
    if parameter.WhichOneof("parameter_choice") != kind:
        raise InvalidRequest(f"invalid value type for '{key}' parameter for tensor '{entry.name}', expected {kind}.")
    return getattr(parameter, kind)
