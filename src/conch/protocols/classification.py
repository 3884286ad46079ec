"""The classification extension: the largest values of an output with their indexes and labels.

Elements are `value:index` or `value:index:label`, in descending order, ties by index; NaN is the smallest value.
Floats have six decimal places, as in Triton.
"""

from collections.abc import Sequence
from math import prod

import numpy as np
import numpy.typing as npt

from conch.base.errors import InvalidRequest
from conch.domain.tensor import BYTES, ITEM_SIZES, NUMPY_DTYPES, Tensor, pack_bytes


def classify(tensor: Tensor, count: int, labels: Sequence[str], batched: bool) -> Tensor:
    """Return the `count` largest elements of an output as a BYTES tensor of the same name.

    Its shape is [batch, min(count, n)] if `batched`, with the first dimension of the output as batch, else
    [min(count, n)]; n is the number of elements of one item. `labels` are those of the output, by index; empty and
    missing ones are omitted. Raises InvalidRequest for BYTES outputs and for data that do not match the shape.
    """
    if tensor.datatype == BYTES:
        raise InvalidRequest(
            "class result not available for output due to unsupported type 'BYTES'; "
            f"classification needs a numeric output, unlike '{tensor.name}'"
        )
    rows = _rows(tensor, batched)
    kept = min(count, rows.shape[1])
    best = _descending(rows)[:, :kept]
    values = np.take_along_axis(rows, best, axis=1)
    write = "{:f}".format if rows.dtype.kind == "f" else "{:d}".format
    elements = [
        _element(write(value), index, labels)
        for row_values, row_indices in zip(values.tolist(), best.tolist(), strict=True)
        for value, index in zip(row_values, row_indices, strict=True)
    ]
    shape = (rows.shape[0], kept) if batched else (kept,)
    return Tensor(tensor.name, BYTES, shape, pack_bytes(elements))


def _rows(tensor: Tensor, batched: bool) -> npt.NDArray[np.generic]:
    """Return the values as [items, elements of one item]."""
    if tensor.nbytes != ITEM_SIZES[tensor.datatype] * prod(tensor.shape) or (batched and not tensor.shape):
        raise InvalidRequest(f"class result not available for output '{tensor.name}': its data do not match its shape")
    items = tensor.shape[0] if batched else 1
    return _values(tensor).reshape(items, prod(tensor.shape[1:] if batched else tensor.shape))


def _values(tensor: Tensor) -> npt.NDArray[np.generic]:
    if tensor.datatype == "BF16":
        # A bfloat16 is the upper half of a float32.
        return (np.frombuffer(tensor.data, "<u2").astype("<u4") << 16).view("<f4")
    if tensor.datatype == "BOOL":
        return np.frombuffer(tensor.data, np.uint8)
    return np.frombuffer(tensor.data, NUMPY_DTYPES[tensor.datatype])


def _descending(rows: npt.NDArray[np.generic]) -> npt.NDArray[np.intp]:
    """Return the indexes that sort each row in descending order, stable."""
    keys = np.where(np.isnan(rows), -np.inf, rows) if rows.dtype.kind == "f" else rows
    # Reversed twice instead of negated: unsigned integers and the smallest signed one have no negation.
    positions_in_reverse = np.argsort(keys[:, ::-1], axis=1, kind="stable")[:, ::-1]
    positions: npt.NDArray[np.intp] = rows.shape[1] - 1 - positions_in_reverse
    return positions


def _element(value: str, index: int, labels: Sequence[str]) -> str:
    label = labels[index] if index < len(labels) else ""
    return f"{value}:{index}:{label}" if label else f"{value}:{index}"
