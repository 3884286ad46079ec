"""Read the requests that a trace file of Triton or Conch has recorded with the trace level TENSORS."""

from collections import defaultdict
from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from conch.domain.tensor import BYTES, DATATYPES, NUMPY_DTYPES, Tensor, pack_bytes
from conch.measure.bench.input_settings import InputError
from conch.measure.bench.inputs.rows import InputRow, InputStreams
from conch.measure.bench.inputs.tensors import to_wire
from conch.measure.bench.targets.target import TargetModel

_INPUT = "TENSOR_QUEUE_INPUT"
PRECISION_NOTE = "recorded floats have six digits"


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
