"""Ragged batching: requests of different shapes in one execution, for frameworks that take joined arrays.

A ragged input is the concatenation of all requests' elements in one dimension. The `batch_input` tensors, which are
made here, give the model the size of each request; `batch_output` names the outputs that are split by the same sizes
(model configuration, "Ragged Batching").
"""

from collections.abc import Sequence
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from conch.base.errors import BackendError
from conch.domain.model_config import BatchInput, BatchInputKind, ModelConfig
from conch.domain.request import InferRequest
from conch.domain.tensor import NUMPY_DTYPES, Tensor
from conch.server.backends.stacking import gather, join_tensors, split

Shape = tuple[int, ...]


class RaggedLayout:
    """Joins requests for one model into one execution, and splits its outputs."""

    def __init__(self, config: ModelConfig) -> None:
        self._batches = config.max_batch_size > 0
        self._ragged = config.ragged_inputs
        self._batch_inputs = config.batch_inputs
        self._sources = {name: output.source for output in config.batch_outputs for name in output.targets}
        # The shape of an output before `reshape`.
        leading = (-1,) if self._batches else ()
        self._shapes = {
            spec.name: (*leading, *(spec.dims if spec.reshape is None else spec.reshape)) for spec in config.outputs
        }

    @classmethod
    def of(cls, config: ModelConfig) -> "RaggedLayout | None":
        """Return the layout of a model, None if its requests are simply joined along the batch axis."""
        needed = config.ragged_inputs or config.batch_inputs or config.batch_outputs
        return cls(config) if needed else None

    def join(self, requests: Sequence[InferRequest]) -> dict[str, npt.NDArray[Any]]:
        """Return the joined inputs of the requests and the `batch_input` tensors, by name."""
        arrays: dict[str, npt.NDArray[Any]] = {}
        for first in requests[0].inputs:
            tensors = gather(requests, first.name)
            if first.name in self._ragged:
                tensors = [
                    Tensor(tensor.name, tensor.datatype, (prod(tensor.shape),), tensor.data) for tensor in tensors
                ]
            arrays[first.name] = join_tensors(tensors)
        for configured in self._batch_inputs:
            shapes = [tensor.shape for tensor in gather(requests, configured.source)]
            array = batch_input(configured, shapes, batches=self._batches)
            arrays |= dict.fromkeys(configured.targets, array)
        return arrays

    def split(
        self, name: str, datatype: str, array: npt.NDArray[Any], requests: Sequence[InferRequest]
    ) -> list[Tensor]:
        """Return one output split by requests. Raises BackendError if its size is not the sum of theirs."""
        source = self._sources.get(name)
        if source is None:
            sizes = [request.batch_size for request in requests] if self._batches else None
            return split(name, datatype, array, sizes)
        shapes = [self._scattered(name, source, request) for request in requests]
        ends = list(accumulate(prod(shape) for shape in shapes))
        if array.size != ends[-1]:
            raise BackendError(
                f"output '{name}' has {array.size} elements of shape {list(array.shape)}, but the shapes of input "
                f"'{source}' scatter {ends[-1]} to the requests of the batch"
            )
        flat = array.reshape(-1)
        return [
            Tensor.from_numpy(name, flat[end - prod(shape) : end].reshape(shape), datatype)
            for shape, end in zip(shapes, ends, strict=True)
        ]

    def _scattered(self, name: str, source: str, request: InferRequest) -> Shape:
        """Return the shape of an output for one request; variable dimensions are those of the `source` input."""
        tensor = request.input(source)
        source_shape = tensor.shape if tensor is not None else ()
        shape = self._shapes[name]
        if any(dim == -1 and place >= len(source_shape) for place, dim in enumerate(shape)):
            raise BackendError(
                f"output '{name}' cannot get its shape {list(shape)} from input '{source}' {list(source_shape)}"
            )
        return tuple(source_shape[place] if dim == -1 else dim for place, dim in enumerate(shape))


def batch_input(spec: BatchInput, shapes: Sequence[Shape], *, batches: bool) -> npt.NDArray[Any]:
    """Return a `batch_input` tensor from the shapes of its source input in the requests."""
    counts = [prod(shape) for shape in shapes]
    dtype = NUMPY_DTYPES[spec.datatype]
    match spec.kind:
        case BatchInputKind.ELEMENT_COUNT:
            return np.array(counts, dtype)
        case BatchInputKind.ACCUMULATED_ELEMENT_COUNT:
            return np.cumsum(counts).astype(dtype)
        case BatchInputKind.ACCUMULATED_ELEMENT_COUNT_WITH_ZERO:
            return np.cumsum([0, *counts]).astype(dtype)
        case BatchInputKind.MAX_ELEMENT_COUNT_AS_SHAPE:
            # Only the shape matters.
            return np.zeros(max(counts, default=0), dtype)
        case BatchInputKind.ITEM_SHAPE | BatchInputKind.ITEM_SHAPE_FLATTEN:
            # Without the batch dimension, one row for each item of the batch.
            items = [shape[1:] for shape in shapes for _ in range(shape[0])] if batches else list(shapes)
            array = np.array(items, dtype)
            return array if spec.kind is BatchInputKind.ITEM_SHAPE else array.reshape(-1)
