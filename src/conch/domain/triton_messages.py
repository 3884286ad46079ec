"""Triton's protobuf messages from `tritonclient`, without the gRPC library that its package imports.

A process can define a protobuf file only once. So these are the modules of `tritonclient.grpc` itself, which a test or
an embedding program may import later in the same process.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from conch.base.errors import ConfigError
from conch.domain.tensor import BYTES

_PACKAGE = "tritonclient.grpc"


def _load(name: str) -> Any:
    """Import a module of the package; do not run the package's `__init__` for it."""
    if _PACKAGE in sys.modules:
        return import_module(f"{_PACKAGE}.{name}")
    parent = find_spec(_PACKAGE.partition(".")[0])
    if parent is None or parent.submodule_search_locations is None:
        raise ModuleNotFoundError("tritonclient is not installed; Conch needs its protobuf messages")
    stand_in = ModuleType(_PACKAGE)
    stand_in.__path__ = [str(Path(location) / "grpc") for location in parent.submodule_search_locations]
    sys.modules[_PACKAGE] = stand_in
    try:
        return import_module(f"{_PACKAGE}.{name}")
    finally:
        del sys.modules[_PACKAGE]


if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2, service_pb2
    from tritonclient.grpc.model_config_pb2 import (
        ModelConfig,
        ModelInput,
        ModelInstanceGroup,
        ModelQueuePolicy,
    )
else:
    model_config_pb2 = _load("model_config_pb2")
    service_pb2 = _load("service_pb2")
    ModelConfig = model_config_pb2.ModelConfig
    ModelInput = model_config_pb2.ModelInput
    ModelInstanceGroup = model_config_pb2.ModelInstanceGroup
    ModelQueuePolicy = model_config_pb2.ModelQueuePolicy

__all__ = [
    "ModelConfig",
    "ModelInput",
    "ModelInstanceGroup",
    "ModelQueuePolicy",
    "config_datatype",
    "datatype_name",
    "enum_name",
    "model_config_pb2",
    "service_pb2",
    "wire_datatype",
]


def datatype_name(number: int) -> str:
    """Return the wire name of a `DataType`, "" for TYPE_INVALID. Raises ConfigError for an unknown number."""
    return wire_datatype(enum_name(model_config_pb2.DataType, number))


def wire_datatype(name: str) -> str:
    """Return the wire name of a datatype of a configuration, such as FP32 for TYPE_FP32; "" for TYPE_INVALID."""
    return {"TYPE_STRING": BYTES, "TYPE_INVALID": ""}.get(name, name.removeprefix("TYPE_"))


def config_datatype(datatype: str) -> str:
    """Return the name that a configuration has for a wire datatype, such as TYPE_STRING for BYTES."""
    return "TYPE_STRING" if datatype == BYTES else f"TYPE_{datatype}"


def enum_name(enum: Any, number: int) -> str:
    """Return the name of an enum value. Raises ConfigError for an unknown number."""
    try:
        return str(enum.Name(number))
    except ValueError:
        raise ConfigError(
            f"{number} is not a value of {enum.DESCRIPTOR.name}; allowed: {', '.join(enum.keys())}"
        ) from None
