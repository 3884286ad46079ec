"""Join requests along the batch axis into the arrays of one execution, and split its outputs.

Tensors of a single request are not copied, except for large indices. Inputs of several requests are copied once, into
the joined buffer; their outputs are views.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from conch.base.errors import BackendError
from conch.domain.request import InferRequest
from conch.domain.tensor import BYTES, NUMPY_DTYPES, Tensor, unpack_bytes
from conch.server.backends.child.conch_child.ipc.arena import MAX_INLINE_BYTES

# numpy has no bfloat16: arrays of it hold the bits.
BF16_BITS = np.dtype("<u2")
_INDICES = ("INT32", "INT64")


def join(requests: Sequence[InferRequest]) -> dict[str, npt.NDArray[Any]]:
    """Return the inputs of the requests by name, joined along axis 0; those of a single request unchanged, of any rank.

    All requests have the same inputs, which differ only in the first dimension. Arrays are read-only; BF16 is
    represented by its bits (uint16), BYTES by `bytes` objects.
    """
    if len(requests) == 1:
        return {tensor.name: _array(tensor.datatype, tensor.shape, tensor.data) for tensor in requests[0].inputs}
    return {first.name: join_tensors(gather(requests, first.name)) for first in requests[0].inputs}


def gather(requests: Sequence[InferRequest], name: str) -> list[Tensor]:
    """Return the inputs of that name; requests without it are skipped."""
    tensors = [request.input(name) for request in requests]
    return [tensor for tensor in tensors if tensor is not None]


def join_tensors(tensors: Sequence[Tensor]) -> npt.NDArray[Any]:
    """Return tensors of one datatype joined along axis 0; a single tensor unchanged, of any rank."""
    first = tensors[0]
    if len(tensors) == 1:
        return _array(first.datatype, first.shape, first.data)
    shape = (sum(tensor.shape[0] for tensor in tensors), *first.shape[1:])
    return _array(first.datatype, shape, b"".join([tensor.data for tensor in tensors]))


def split(name: str, datatype: str, array: npt.NDArray[Any], sizes: Sequence[int] | None) -> list[Tensor]:
    """Return one output split into the parts of requests of the given batch sizes.

    `sizes` None means a model without a batch axis, and one request. Raises BackendError if the first dimension of the
    array is not the sum of the sizes.
    """
    if sizes is None:
        return [Tensor.from_numpy(name, array, datatype)]
    total = sum(sizes)
    if array.ndim == 0 or array.shape[0] != total:
        raise BackendError(
            f"output '{name}' has shape {list(array.shape)} for a batch of {total}: its first dimension must be the "
            f"batch size; a model whose output is not per item needs max_batch_size: 0"
        )
    if len(sizes) == 1:
        return [Tensor.from_numpy(name, array, datatype)]
    ends = list(accumulate(sizes))
    if datatype == BYTES:
        slices = [array[end - size : end] for size, end in zip(sizes, ends, strict=True)]
        return [Tensor.from_numpy(name, part, datatype) for part in slices]
    # Slicing the wire bytes is several times cheaper than slicing the array.
    data = memoryview(Tensor.from_numpy(name, array, datatype).data)
    per_item, shape = len(data) // max(total, 1), array.shape[1:]
    return [
        Tensor(name, datatype, (size, *shape), data[(end - size) * per_item : end * per_item])
        for size, end in zip(sizes, ends, strict=True)
    ]


def _array(datatype: str, shape: Sequence[int], data: Any) -> npt.NDArray[Any]:
    if datatype == BYTES:
        elements = unpack_bytes(data)
        array = np.empty(len(elements), dtype=np.object_)
        array[:] = elements
        return array.reshape(shape)
    array = np.frombuffer(data, dtype=NUMPY_DTYPES.get(datatype, BF16_BITS)).reshape(shape)
    # A process that made a large tensor can still write to it. Frameworks check indices before they use them, so
    # indices that change in between would let them read outside of their memory.
    return array.copy() if datatype in _INDICES and array.nbytes >= MAX_INLINE_BYTES else array
