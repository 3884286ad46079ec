"""Inputs given row by row, from files, and how they become requests of a batch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from conch.domain.tensor import BYTES, ITEM_SIZES, Tensor
from conch.measure.bench.input_settings import InputError
from conch.measure.bench.targets.target import TargetModel


@dataclass(frozen=True, slots=True)
class InputRow:
    """The tensors of one request of batch 1, without the batch dimension, and the outputs that are expected.

    With `batched`, the shapes include the batch: the row is a request as it was recorded.
    """

    tensors: Mapping[str, Tensor]
    expected: Mapping[str, Tensor] = field(default_factory=dict)
    batched: bool = False


@dataclass(frozen=True, slots=True)
class InputStreams:
    """Rows: one list for all users in turn, or one for each sequence."""

    streams: Sequence[Sequence[InputRow]]
    sequences: bool = False
    notes: tuple[str, ...] = ()


def batches(rows: Sequence[InputRow], model: TargetModel, batch_size: int) -> list[InputRow]:
    """Return requests of `batch_size` rows each, in turn; as many as there are rows."""
    if not model.batched:
        return list(rows)
    return [
        row if row.batched else _stacked([rows[(index + at) % len(rows)] for at in range(batch_size)])
        for index, row in enumerate(rows)
    ]


def _stacked(rows: Sequence[InputRow]) -> InputRow:
    names = rows[0].tensors.keys()
    for row in rows:
        if row.tensors.keys() != names:
            raise InputError("the rows of one batch have different inputs; use --batch-size 1")
    tensors = {name: _joined([row.tensors[name] for row in rows]) for name in names}
    complete = all(row.expected.keys() == rows[0].expected.keys() for row in rows)
    expected = {name: _joined([row.expected[name] for row in rows]) for name in rows[0].expected if complete}
    return InputRow(tensors, expected, batched=True)


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    first = tensors[0]
    if any(tensor.shape != first.shape for tensor in tensors):
        raise InputError(f"'{first.name}' has different shapes in one batch; use --batch-size 1")
    data = b"".join(bytes(tensor.data) for tensor in tensors)
    return Tensor(first.name, first.datatype, (len(tensors), *first.shape), data)


def check_size(tensor: Tensor, where: str) -> None:
    """Raise InputError if the bytes do not fill the shape."""
    if tensor.datatype == BYTES:
        return
    wanted = prod(tensor.shape) * ITEM_SIZES[tensor.datatype]
    if tensor.nbytes != wanted:
        shape = list(tensor.shape)
        raise InputError(f"{where}: '{tensor.name}' has {tensor.nbytes} bytes; {tensor.datatype}{shape} needs {wanted}")
