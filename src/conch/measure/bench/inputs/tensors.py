"""Tensors of requests: generated from a model's metadata, or given row by row, and stacked to batches."""

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from conch.domain.tensor import BYTES, ITEM_SIZES, NUMPY_DTYPES, Tensor, pack_bytes
from conch.measure.bench.input_settings import InputError, InputSettings
from conch.measure.bench.targets.target import TargetModel, TensorMetadata

BF16 = "BF16"
_MAX_ELEMENTS = 2**31
# Of random integers without a range: valid as token ids, indexes and lengths of most models.
_DEFAULT_HIGH = 127
_UINT8_HIGH = 255
_LETTERS = np.frombuffer(string.ascii_letters.encode(), np.uint8)


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


def input_forms(model: TargetModel, settings: InputSettings) -> list[TensorMetadata]:
    """Return the inputs to send, with complete shapes: the required ones, and optional ones with a shape or range.

    Raises InputError for a variable dimension without a shape, naming the input and the flag.
    """
    _check_names(model, settings)
    _check_batch(model, settings.batch_size)
    asked = settings.shapes.keys() | settings.ranges.keys()
    return [
        replace(form, shape=full_shape(form, model, settings))
        for form in model.inputs
        if not form.optional or form.name in asked
    ]


def full_shape(form: TensorMetadata, model: TargetModel, settings: InputSettings) -> tuple[int, ...]:
    """Return the shape of a request's input, with the batch. Raises InputError."""
    batch: tuple[int, ...] = (settings.batch_size,) if model.batched else ()
    dims = form.shape[1:] if model.batched else form.shape
    given = settings.shapes.get(form.name)
    if given is None:
        if form.datatype == BYTES and all(dim in (-1, 1) for dim in dims):
            return batch + (1,) * len(dims)  # one text
        if any(dim < 0 for dim in dims):
            raise _needs_shape(form, dims)
        return batch + dims
    if model.batched and len(given) == len(dims) + 1:
        if settings.batch_size not in (1, given[0]):
            raise InputError(f"--shape {form.name}: the batch of {given[0]} is not the --batch-size")
        batch, given = given[:1], given[1:]
    fits = len(given) == len(dims) and all(dim in (-1, size) for dim, size in zip(dims, given, strict=True))
    if not fits:
        shown = ",".join(map(str, given))
        raise InputError(f"--shape {form.name}:{shown} does not fit the model's dimensions {list(dims)}")
    if prod(batch + given) > _MAX_ELEMENTS:
        raise InputError(f"--shape {form.name}: {prod(batch + given)} elements are too many for one request")
    return batch + given


def _needs_shape(form: TensorMetadata, dims: tuple[int, ...]) -> InputError:
    example = ",".join(str(dim) if dim >= 0 else "N" for dim in dims)
    return InputError(
        f"input '{form.name}' has variable dimensions {list(dims)}; give its size with --shape {form.name}:{example}"
    )


def _check_names(model: TargetModel, settings: InputSettings) -> None:
    names = [form.name for form in model.inputs]
    for flag, given in (("--shape", settings.shapes), ("--range", settings.ranges)):
        for name in given:
            if name not in names:
                listed = ", ".join(names) or "no inputs"
                raise InputError(f"{flag} {name}: model '{model.name}' has {listed}, no input '{name}'")


def _check_batch(model: TargetModel, batch_size: int) -> None:
    if batch_size < 1:
        raise InputError(f"--batch-size {batch_size} is not a number above 0")
    if batch_size > 1 and not model.batched:
        raise InputError(f"--batch-size {batch_size}: model '{model.name}' does not batch (max_batch_size is 0)")
    if batch_size > model.max_batch_size > 0:
        raise InputError(
            f"--batch-size {batch_size}: the max_batch_size of model '{model.name}' is {model.max_batch_size}"
        )


class TensorGenerator:
    """Makes tensors of zeros or of random values, the same ones for the same seed."""

    def __init__(self, settings: InputSettings) -> None:
        self._zero = settings.input_data == "zero"
        self._ranges = settings.ranges
        self._string_length = settings.string_length
        self._rng = np.random.default_rng(settings.seed)

    def tensor(self, form: TensorMetadata) -> Tensor:
        """Return a new tensor."""
        count = prod(form.shape)
        if form.datatype == BYTES:
            return Tensor(form.name, BYTES, form.shape, pack_bytes(self._strings(form.name, count)))
        if self._zero:
            return Tensor(form.name, form.datatype, form.shape, bytes(count * ITEM_SIZES[form.datatype]))
        values = self._numbers(form, count)
        return Tensor(form.name, form.datatype, form.shape, to_wire(values, form.datatype))

    def _strings(self, name: str, count: int) -> list[bytes]:
        if self._zero:
            return [b""] * count
        if name in self._ranges:  # a text with a number
            low, high = self._ranges[name]
            return [b"%d" % value for value in self._rng.integers(int(low), int(high), count, endpoint=True)]
        letters = self._rng.choice(_LETTERS, (count, self._string_length))
        return [bytes(row) for row in letters]

    def _numbers(self, form: TensorMetadata, count: int) -> NDArray[np.generic]:
        if form.datatype == "BOOL":
            return self._rng.integers(0, 2, count).astype(np.bool_)
        if form.datatype in ("FP16", BF16, "FP32", "FP64"):
            low, high = self._ranges.get(form.name, (0.0, 1.0))
            return low + (high - low) * self._rng.random(count)
        low, high = integer_range(form, self._ranges)
        return self._rng.integers(int(low), int(high), count, NUMPY_DTYPES[form.datatype], endpoint=True)


def integer_range(form: TensorMetadata, ranges: Mapping[str, tuple[float, float]]) -> tuple[int, int]:
    """Return the lowest and highest value of an integer input. Raises InputError for those beyond the datatype."""
    limits = np.iinfo(NUMPY_DTYPES[form.datatype])
    low, high = ranges.get(form.name, (0, _UINT8_HIGH if form.datatype == "UINT8" else _DEFAULT_HIGH))
    if not limits.min <= low <= high <= limits.max:
        raise InputError(
            f"--range {form.name}:{low:g},{high:g} is not a range of {form.datatype} ({limits.min} to {limits.max})"
        )
    return int(low), int(high)


def to_wire(values: NDArray[np.generic], datatype: str) -> bytes:
    """Return the wire bytes of numbers, converted to the datatype. BF16 is rounded to the nearest, ties to even."""
    if datatype == BF16:
        bits = np.ascontiguousarray(values, "<f4").view(np.uint32)
        rounded = bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
        return (rounded >> np.uint32(16)).astype("<u2").tobytes()
    return np.ascontiguousarray(values).astype(NUMPY_DTYPES[datatype]).tobytes()
