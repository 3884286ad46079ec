"""Read inputs and outputs of an ONNX file of any size, without a framework and without loading the weights.

An ONNX file is a protobuf message. Only the fields that lead to the graph's inputs and outputs are read (numbers from
onnx.proto3); all others are skipped by their length.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from mmap import ACCESS_READ, mmap
from pathlib import Path

from conch.domain.files.signature import Signature, TensorInfo

_GRAPH = 7  # of ModelProto
_INITIALIZER, _INPUT, _OUTPUT = 5, 11, 12  # of GraphProto
_TENSOR_NAME, _EXTERNAL_DATA = 8, 13  # of TensorProto
_NAME, _TYPE = 1, 2  # of ValueInfoProto
_TENSOR_TYPE, _SEQUENCE_TYPE, _MAP_TYPE, _SPARSE_TYPE, _OPTIONAL_TYPE = 1, 4, 5, 8, 9  # of TypeProto
_ELEMENT_TYPE = 1  # of TypeProto.Sequence and TypeProto.Optional
_MAX_TYPE_DEPTH = 8
_ELEMENT, _SHAPE = 1, 2  # of TypeProto.Tensor
_DIMENSION = 1  # of TensorShapeProto
_SIZE = 1  # of Dimension, which may have a name instead
_KEY, _VALUE = 1, 2  # of StringStringEntryProto

# TensorProto.DataType → wire datatype.
_DATATYPES = {
    1: "FP32",
    2: "UINT8",
    3: "INT8",
    4: "UINT16",
    5: "INT16",
    6: "INT32",
    7: "INT64",
    8: "BYTES",
    9: "BOOL",
    10: "FP16",
    11: "FP64",
    12: "UINT32",
    13: "UINT64",
    16: "BF16",
}

_MAX_FIELDS = 1 << 21  # of a message; a graph has one for each node and each weight

_Field = tuple[int, int | memoryview]


class NotOnnx(ValueError):
    """The file is not an ONNX model, or is truncated."""


@dataclass(frozen=True, slots=True)
class OnnxFile:
    """Contents of a file. `shaped`: whether every output has a shape; `external` are files of weights."""

    signature: Signature
    shaped: bool
    external: tuple[str, ...]


@dataclass(slots=True)
class _Graph:
    inputs: list[TensorInfo] = field(default_factory=list)
    outputs: list[TensorInfo] = field(default_factory=list)
    initializers: set[str] = field(default_factory=set)
    external: dict[str, None] = field(default_factory=dict)
    shapeless: bool = False


def read_onnx(path: Path) -> OnnxFile:
    """Read a file. Raises NotOnnx if it is not an ONNX model, OSError if it cannot be read."""
    graph = _Graph()
    with path.open("rb") as file:
        # Not closed explicitly: after an error, views of it are still alive.
        mapped = mmap(file.fileno(), 0, access=ACCESS_READ)
    for number, value in _fields(memoryview(mapped)):
        if number == _GRAPH:
            _read_graph(_message(value), graph)
    if not graph.outputs:
        raise NotOnnx("it contains no graph with outputs")
    required = tuple(info for info in graph.inputs if info.name not in graph.initializers)
    optional = tuple(info for info in graph.inputs if info.name in graph.initializers)
    return OnnxFile(Signature(required, tuple(graph.outputs), optional), not graph.shapeless, tuple(graph.external))


def _read_graph(view: memoryview, graph: _Graph) -> None:
    for number, value in _fields(view):
        if number == _INITIALIZER:
            for inner, part in _fields(_message(value)):
                if inner == _TENSOR_NAME:
                    graph.initializers.add(_text(part))
                elif inner == _EXTERNAL_DATA:
                    entry = {key: _text(text) for key, text in _fields(_message(part))}
                    if entry.get(_KEY) == "location":
                        graph.external[entry.get(_VALUE, "")] = None
        elif number == _INPUT:
            graph.inputs.append(_info(_message(value))[0])
        elif number == _OUTPUT:
            info, shaped = _info(_message(value))
            graph.outputs.append(info)
            graph.shapeless |= not shaped


def _info(view: memoryview) -> tuple[TensorInfo, bool]:
    """Return the tensor of a ValueInfoProto, and whether it has a shape."""
    name, element, dims, shaped = "", 0, [], False
    for number, value in _fields(view):
        if number == _NAME:
            name = _text(value)
        elif number == _TYPE:
            for kind, tensor in _fields(_message(value)):
                if kind != _TENSOR_TYPE:
                    # Not a tensor: the server cannot send it.
                    return TensorInfo(name, "", (), _spelt(kind, tensor)), True
                for inner, part in _fields(_message(tensor)):
                    if inner == _ELEMENT and isinstance(part, int):
                        element = part
                    elif inner == _SHAPE:
                        shaped = True
                        dims = [_size(_message(dim)) for at, dim in _fields(_message(part)) if at == _DIMENSION]
    return TensorInfo(name, _DATATYPES.get(element, ""), tuple(dims), f"ONNX type {element}"), shaped


def _spelt(kind: int, value: int | memoryview, depth: int = 0) -> str:
    """Return the name of a type that is not a tensor, in onnxruntime's form: `seq(map(…))`."""
    if depth > _MAX_TYPE_DEPTH:
        raise NotOnnx("a type is nested too deeply")
    if kind == _MAP_TYPE:
        return "map(…)"
    if kind not in (_SEQUENCE_TYPE, _OPTIONAL_TYPE):
        return "tensor(…)" if kind == _TENSOR_TYPE else "sparse_tensor(…)"
    inner = "…"
    for number, part in _fields(_message(value)):
        if number == _ELEMENT_TYPE:
            inner = next((_spelt(field, value, depth + 1) for field, value in _fields(_message(part))), "…")
    return f"{'seq' if kind == _SEQUENCE_TYPE else 'optional'}({inner})"


def _size(view: memoryview) -> int:
    """Return the size of a dimension, -1 if it is variable."""
    for number, value in _fields(view):
        if number == _SIZE and isinstance(value, int):
            return value if value < 1 << 63 else -1
    return -1


def _message(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise NotOnnx("a number instead of a message")
    return value


def _text(value: int | memoryview) -> str:
    return str(_message(value), "utf-8", "replace")


def _fields(view: memoryview) -> Iterator[_Field]:
    """Yield number and value of each field: an integer, or a view of a field with a length."""
    at = count = 0
    while at < len(view):
        key, at = _varint(view, at)
        number, kind = key >> 3, key & 7
        count += 1
        if number == 0 or count > _MAX_FIELDS:
            raise NotOnnx(f"more than {_MAX_FIELDS} fields" if number else "a field without a number")
        if kind == 0:
            value, at = _varint(view, at)
            yield number, value
            continue
        if kind == 2:
            length, at = _varint(view, at)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise NotOnnx(f"a field with the unknown wire type {kind}")
        if length > len(view) - at:
            raise NotOnnx("it is truncated")
        yield number, view[at : at + length]
        at += length


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(view):
            raise NotOnnx("it is truncated")
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise NotOnnx("a number of more than 64 bits")
