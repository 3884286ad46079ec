# Compiled by mypyc in wheels.
"""`reshape` of a configuration: clients use `dims`, the backend another shape of the same elements.

Variable dimensions keep their order: the n-th -1 of one side is the n-th -1 of the other (model configuration,
"Reshape").
"""

from collections.abc import Sequence

from conch.domain.model_config import ModelConfig, TensorSpec
from conch.domain.request import InferRequest, InferResponse
from conch.domain.tensor import Tensor


class Reshaper:
    """The reshapes of one model; `needed` is False for a model without any."""

    def __init__(self, config: ModelConfig) -> None:
        self._leading = 1 if config.max_batch_size > 0 else 0
        self._inputs = {spec.name: spec for spec in config.inputs if spec.reshape is not None}
        self._outputs = {spec.name: spec for spec in config.outputs if spec.reshape is not None}
        self.needed = bool(self._inputs or self._outputs)

    def request(self, request: InferRequest) -> None:
        """Give the inputs the shapes of the backend. The request has been validated."""
        request.inputs = [
            self._apply(tensor, self._inputs.get(tensor.name), to_backend=True) for tensor in request.inputs
        ]

    def response(self, response: InferResponse) -> None:
        """Give the outputs the shapes of the client."""
        response.outputs = [
            self._apply(tensor, self._outputs.get(tensor.name), to_backend=False) for tensor in response.outputs
        ]

    def _apply(self, tensor: Tensor, spec: TensorSpec | None, *, to_backend: bool) -> Tensor:
        if spec is None or spec.reshape is None:
            return tensor
        old, new = (spec.dims, spec.reshape) if to_backend else (spec.reshape, spec.dims)
        batch, shape = tensor.shape[: self._leading], tensor.shape[self._leading :]
        if not to_backend and not _fits(shape, old):  # not what the model declares
            return tensor
        return tensor.reshaped((*batch, *_mapped(shape, old, new)))


def _fits(shape: Sequence[int], dims: Sequence[int]) -> bool:
    return len(shape) == len(dims) and all(dim in (-1, size) for size, dim in zip(shape, dims, strict=True))


def _mapped(shape: Sequence[int], old: Sequence[int], new: Sequence[int]) -> tuple[int, ...]:
    variable = iter([size for size, dim in zip(shape, old, strict=False) if dim == -1])
    return tuple(next(variable, 1) if dim == -1 else dim for dim in new)
