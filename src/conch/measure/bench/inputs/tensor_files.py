"""Tensors from files: perf_analyzer's `--input-data`, JSON or a folder with a file per tensor, and recordings."""

import binascii
from base64 import b64decode
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from conch.base.errors import InvalidRequest
from conch.domain.tensor import BYTES, DATATYPES, NUMPY_DTYPES, Tensor, pack_bytes
from conch.measure.bench.input_settings import InputError, InputSettings
from conch.measure.bench.inputs.tensors import BF16, InputRow, InputStreams, check_size, full_shape, to_wire
from conch.measure.bench.targets.target import TargetModel, TensorMetadata
from conch.protocols.v2_json.data import pack

_FLOATS = ("FP16", BF16)
_INPUT = "TENSOR_QUEUE_INPUT"
PRECISION_NOTE = "recorded floats have six digits"


def read_streams(path: str, document: Any, model: TargetModel, settings: InputSettings) -> InputStreams:
    """Return the rows of a document; with lists in "data", one stream for each. Raises InputError."""
    if not isinstance(document, dict) or not isinstance(document.get("data"), list) or not document["data"]:
        raise InputError(f'--input-data {path}: expected an object with a list "data"')
    reader = _Reader(path, model, settings)
    data = document["data"]
    validation = document.get("validation_data") or []
    sequences = isinstance(data[0], list)
    streams = data if sequences else [data]
    checks = validation if sequences else [validation]
    stream_rows = [
        [reader.row(number, entry, expected) for number, (entry, expected) in enumerate(_paired(rows, checks, index))]
        for index, rows in enumerate(streams)
    ]
    if not all(stream_rows):
        raise InputError(f"--input-data {path}: a stream has no entries")
    return InputStreams(stream_rows, sequences)


def _paired(rows: Sequence[Any], checks: Sequence[Any], index: int) -> Iterator[tuple[Any, Any]]:
    """Yield entries with their validation data, which may be missing."""
    expected = checks[index] if index < len(checks) else []
    for number, row in enumerate(rows):
        yield row, expected[number] if number < len(expected) else None


def read_folder(folder: Path, model: TargetModel, settings: InputSettings) -> InputStreams:
    """Return the row of a folder: the raw bytes of each input, for a batch of 1, in a file with its name.

    Files with the names of outputs are the expected answer. Raises InputError.
    """
    tensors: dict[str, Tensor] = {}
    for form in model.inputs:
        file = folder / form.name
        if file.is_file():
            tensors[form.name] = _of_file(file, form, _row_shape(form, model, settings))
        elif not form.optional:
            raise InputError(f"--input-data {folder}: there is no file '{form.name}' for the input of that name")
    expected = {
        form.name: _of_file(folder / form.name, form, _fixed(form, model))
        for form in model.outputs
        if (folder / form.name).is_file()
    }
    return InputStreams([[InputRow(tensors, expected)]])


def _of_file(file: Path, form: TensorMetadata, shape: tuple[int, ...]) -> Tensor:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise InputError(f"--input-data {file} cannot be read: {error.strerror}") from None
    if form.datatype == BYTES and prod(shape) == 1:
        data = pack_bytes([data])
    tensor = Tensor(form.name, form.datatype, shape, data)
    check_size(tensor, f"--input-data {file}")
    return tensor


def _row_shape(form: TensorMetadata, model: TargetModel, settings: InputSettings) -> tuple[int, ...]:
    shape = full_shape(form, model, settings)
    return shape[1:] if model.batched else shape


def _fixed(form: TensorMetadata, model: TargetModel) -> tuple[int, ...]:
    dims = form.shape[1:] if model.batched else form.shape
    return tuple(abs(dim) for dim in dims)


class _Reader:
    """Converts entries of one document."""

    def __init__(self, path: str, model: TargetModel, settings: InputSettings) -> None:
        self._path = path
        self._model = model
        self._settings = settings
        self._inputs = {form.name: form for form in model.inputs}
        self._outputs = {form.name: form for form in model.outputs}

    def row(self, number: int, entry: Any, expected: Any) -> InputRow:
        """Return one entry of "data" with its entry of "validation_data"."""
        where = f"--input-data {self._path}: entry {number}"
        if not isinstance(entry, dict) or not isinstance(expected, dict | None):
            raise InputError(f"{where} is not an object with the inputs by name")
        missing = [form.name for form in self._inputs.values() if not form.optional and form.name not in entry]
        if missing:
            raise InputError(f"{where} lacks the input '{missing[0]}'")
        tensors = {name: self._tensor(where, name, value, self._inputs) for name, value in entry.items()}
        checks = {name: self._tensor(where, name, value, self._outputs) for name, value in (expected or {}).items()}
        return InputRow(tensors, checks)

    def _tensor(self, where: str, name: str, value: Any, forms: Mapping[str, TensorMetadata]) -> Tensor:
        form = forms.get(name)
        if form is None:
            raise InputError(f"{where}: the model has no '{name}'; it has {', '.join(forms)}")
        content, shape = value, None
        if isinstance(value, dict) and "content" in value:
            content, shape = value["content"], value.get("shape")
        elif isinstance(value, dict):
            shape = value.get("shape")
        where = f"{where}, '{name}'"
        if shape is not None and not (isinstance(shape, list) and all(isinstance(dim, int) for dim in shape)):
            raise InputError(f'{where}: "shape" is not a list of numbers')
        if isinstance(content, dict):
            return self._of_base64(where, form, content.get("b64"), shape)
        return self._of_list(where, form, content, shape)

    def _of_base64(self, where: str, form: TensorMetadata, text: Any, shape: list[int] | None) -> Tensor:
        try:
            data = b64decode(text, validate=True)
        except (TypeError, ValueError, binascii.Error):
            raise InputError(f'{where}: "b64" is not valid base64') from None
        tensor = Tensor(form.name, form.datatype, self._shape(where, form, shape, None), data)
        check_size(tensor, where)
        return tensor

    def _of_list(self, where: str, form: TensorMetadata, content: Any, shape: list[int] | None) -> Tensor:
        values = content if isinstance(content, list) else [content]
        flat = np.array(values, object).ravel().tolist() if any(isinstance(value, list) for value in values) else values
        full = self._shape(where, form, shape, len(flat))
        if prod(full) != len(flat):
            raise InputError(f"{where} has {len(flat)} elements; its shape {list(full)} needs {prod(full)}")
        if form.datatype in _FLOATS:
            return Tensor(form.name, form.datatype, full, to_wire(np.array(flat, np.float32), form.datatype))
        if form.datatype == "BOOL":
            flat = [bool(value) for value in flat]
        try:
            return Tensor(form.name, form.datatype, full, pack(form.name, form.datatype, flat, len(flat)))
        except InvalidRequest as error:
            raise InputError(f"{where}: {error.message}") from None

    def _shape(self, where: str, form: TensorMetadata, shape: list[int] | None, count: int | None) -> tuple[int, ...]:
        """Return the given shape, else that of --shape or of the model; one variable dimension fits the elements."""
        if shape is not None:
            return tuple(shape)
        dims = form.shape[1:] if self._model.batched else form.shape
        if form.name in self._settings.shapes:
            return _row_shape(form, self._model, self._settings)
        variable = [at for at, dim in enumerate(dims) if dim < 0]
        if not variable:
            return tuple(dims)
        fixed = prod(dim for dim in dims if dim >= 0)
        if len(variable) > 1 or count is None or not fixed or count % fixed:
            raise InputError(f'{where} has variable dimensions {list(dims)}: give "shape" beside "content", or --shape')
        return tuple(count // fixed if dim < 0 else dim for dim in dims)


def is_recording(document: Any) -> bool:
    """Whether a document is a trace file."""
    return isinstance(document, list) and bool(document) and isinstance(document[0], dict) and "id" in document[0]


def read_recording(path: str, document: list[Any], model: TargetModel) -> InputStreams:
    """Return the recorded requests to a model, with the batches that they had. Raises InputError."""
    models: dict[Any, str] = {}
    inputs: defaultdict[Any, dict[str, Tensor]] = defaultdict(dict)
    for entry in document:
        if not isinstance(entry, dict):
            continue
        if "model_name" in entry and not entry.get("parent_id"):
            models[entry.get("id")] = str(entry["model_name"])
        if entry.get("activity") == _INPUT and isinstance(entry.get("tensor"), dict):
            tensor = _tensor(path, entry["tensor"])
            inputs[entry.get("id")][tensor.name] = tensor
    rows = [
        InputRow(inputs[number], batched=True)
        for number, name in models.items()
        if name == model.name and inputs[number]
    ]
    if rows:
        return InputStreams([rows], notes=(PRECISION_NOTE,))
    if not any(inputs.values()):
        raise InputError(f"--input-data {path}: the trace has no tensors; record with the trace level TENSORS")
    known = ", ".join(sorted({name for number, name in models.items() if inputs[number]}))
    raise InputError(f"--input-data {path}: the trace has no request to model '{model.name}'; it has {known}")


def _tensor(path: str, entry: Mapping[str, Any]) -> Tensor:
    name, datatype, data = str(entry.get("name")), str(entry.get("dtype")), str(entry.get("data"))
    try:
        shape = tuple(int(dim) for dim in str(entry.get("shape")).split(",") if dim)
        if datatype not in DATATYPES:
            raise ValueError(f"unknown datatype {datatype}")
        if datatype == BYTES:
            return Tensor(name, BYTES, shape, pack_bytes(_texts(data, prod(shape))))
        values = np.array([_number(text) for text in data.split(",")] if data else [], np.float64)
        if NUMPY_DTYPES.get(datatype, np.dtype("f4")).kind in "iu":
            values = np.array([int(text) for text in data.split(",")] if data else [], NUMPY_DTYPES[datatype])
        if len(values) != prod(shape):
            raise ValueError(f"{len(values)} elements for shape {list(shape)}")
    except (ValueError, OverflowError) as error:
        raise InputError(f"--input-data {path}: the recorded input '{name}' is invalid: {error}") from None
    return Tensor(name, datatype, shape, to_wire(values, datatype))


def _number(text: str) -> float:
    return {"true": 1.0, "false": 0.0}.get(text) or float(text)


def _texts(data: str, count: int) -> list[str]:
    texts = data[1:-1].split('","') if count != 1 else [data[1:-1]]
    if len(texts) != count:
        raise ValueError(f"its texts contain quotation marks: {len(texts)} elements instead of {count}")
    return texts
