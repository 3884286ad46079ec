"""The declarations of a Python file with models: `conch.model`, `conch.endpoint` and the types of tensors.

A declaration changes nothing about its function or class, which tests can call as they are.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional, Sequence, TypeVar, overload

# The attributes that declarations are found by: this module may be imported under two names in one process.
MODEL, ENDPOINT = "__conch_model__", "__conch_endpoint__"
DEFAULT_MAX_BATCH_SIZE = 32

Declared = TypeVar("Declared")


class Tensor:
    """Datatype and shape of an array, for `Annotated[np.ndarray, Tensor("FP32", [3, -1])]`.

    Names are Triton's, such as FP32, UINT8 or INT64. -1 is any size. The shape has no batch dimension.
    """

    def __init__(self, datatype: str, shape: Sequence[int] = (-1,)) -> None:
        self.datatype = datatype
        self.shape = list(shape)

    def __repr__(self) -> str:
        return 'conch.Tensor("{}", {})'.format(self.datatype, self.shape)


class Image:
    """Annotates an image: clients send a JPEG or PNG file, the model gets an array UINT8[height, width, 3] (RGB)."""


class InvalidInput(ValueError):
    """Raised by a model for an input that it cannot serve. The client gets the message with the status 400."""


@overload
def model(target: Declared) -> Declared: ...


@overload
def model(
    *,
    name: str = ...,
    batch: bool = ...,
    max_batch_size: int = ...,
    batch_delay_us: int = ...,
    instances: int = ...,
    gpu: bool = ...,
    concurrency: int = ...,
    config: Optional[Dict[str, Any]] = ...,
) -> Callable[[Declared], Declared]: ...


def model(
    target: Any = None,
    *,
    name: str = "",
    batch: bool = False,
    max_batch_size: int = DEFAULT_MAX_BATCH_SIZE,
    batch_delay_us: int = 0,
    instances: int = 1,
    gpu: bool = False,
    concurrency: int = 64,
    config: Optional[Dict[str, Any]] = None,
) -> Any:
    """Declare a function or class as a model. Its annotated parameters are the inputs, its result the outputs.

    `name` is by default that of the function or class. With `batch`, the function takes and returns arrays with a
    batch dimension, or lists, of up to `max_batch_size` items out of several requests; a batch waits for more of them
    for up to `batch_delay_us` microseconds. Each of the `instances` is a process, with `gpu` one for each GPU.
    An async function runs for up to `concurrency` requests at a time in each instance. `config` has other fields of
    Triton's model configuration.
    """
    declaration = {
        "name": name,
        "batch": batch,
        "max_batch_size": max_batch_size,
        "batch_delay_us": batch_delay_us,
        "instances": instances,
        "gpu": gpu,
        "concurrency": concurrency,
        "config": config or {},
    }
    return _declare(MODEL, target, declaration)


@overload
def endpoint(target: Declared) -> Declared: ...


@overload
def endpoint(*, name: str = ..., batch: Optional[bool] = ...) -> Callable[[Declared], Declared]: ...


def endpoint(target: Any = None, *, name: str = "", batch: Optional[bool] = None) -> Any:
    """Declare a method of a class as one of its endpoints, each of which is served as the model `Class_method`.

    `batch` replaces that of the class.
    """
    declaration: Dict[str, Any] = {"name": name}
    if batch is not None:
        declaration["batch"] = batch
    return _declare(ENDPOINT, target, declaration)


def _declare(attribute: str, target: Any, declaration: Dict[str, Any]) -> Any:
    if target is None:  # with options: @conch.model(…)
        return lambda function: _declare(attribute, function, declaration)
    setattr(target, attribute, declaration)
    return target
