"""Inputs and outputs of a model, as its file declares them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One input or output of a model. `dims` has -1 for variable dimensions, and includes the batch dimension."""

    name: str
    datatype: str  # wire name, "" if there is none for its type
    dims: tuple[int, ...]
    native_type: str = ""  # the framework's name, for messages


@dataclass(frozen=True, slots=True)
class Signature:
    """All inputs and outputs of a model; `optional_inputs` have a default value in the model."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    optional_inputs: tuple[TensorInfo, ...] = ()
