"""Read inputs and outputs of OpenVINO IR from its XML, without the framework and the weights.

The file is a graph of layers and edges ("OpenVINO IR format"). Only the layers Parameter and Result, the ports that
lead to results, and the offsets of constants in the weights are read.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from xml.etree import ElementTree as ET
from xml.etree.ElementTree import Element

from conch.domain.files.signature import Signature, TensorInfo
from conch.domain.tensor import MAX_RANK

# A graph without its weights is rarely larger than a few MB; parsed, it takes ten times its size.
_MAX_BYTES = 64 << 20
_MAX_DIGITS = 20
_DATATYPES = {
    "boolean": "BOOL",
    "u8": "UINT8",
    "u16": "UINT16",
    "u32": "UINT32",
    "u64": "UINT64",
    "i8": "INT8",
    "i16": "INT16",
    "i32": "INT32",
    "i64": "INT64",
    "f16": "FP16",
    "f32": "FP32",
    "f64": "FP64",
    "bf16": "BF16",
}
# Bits of an element; packed ones of less than a byte are rounded up to whole bytes.
_BITS = {
    **dict.fromkeys(("boolean", "u8", "i8", "f8e4m3", "f8e5m2", "f8e8m0"), 8),
    **dict.fromkeys(("u16", "i16", "f16", "bf16"), 16),
    **dict.fromkeys(("u32", "i32", "f32"), 32),
    **dict.fromkeys(("u64", "i64", "f64"), 64),
    **dict.fromkeys(("u4", "i4", "nf4", "f4e2m1"), 4),
    "u1": 1,
    "u2": 2,
}
_OPSET = re.compile(r"(?:opset\d+|experimental|ie_internal_opset|type_relaxed_opset|gpu_opset)$")
_MIN_IR_VERSION, _MAX_IR_VERSION = 10, 11
# Ports and layers use different names.
_PRECISIONS = {name.upper(): name for name in _DATATYPES} | {
    **{f"FP{bits}": f"f{bits}" for bits in (16, 32, 64)},
    "BOOL": "boolean",
}


class NotIr(ValueError):
    """The text is not OpenVINO IR."""


@dataclass(frozen=True, slots=True)
class IrFile:
    """Inputs and outputs of a graph. `weights_bytes` is the minimum size of the weights file, 0 if none is needed.

    Several names of a tensor are joined with commas, as in the file. An output of unknown shape has no dims.
    """

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    weights_bytes: int
    foreign: tuple[str, ...]  # layers of an extension

    def signature(self, declared: set[str]) -> Signature:
        """Return inputs and outputs. Of several names, the declared one counts, or else the first in sorted order."""
        return Signature(_named(self.inputs, declared), _named(self.outputs, declared))


@dataclass(slots=True)
class _Graph:
    parameters: list[TensorInfo] = field(default_factory=list)
    results: list[tuple[str, Element]] = field(default_factory=list)
    ports: dict[tuple[str, str], Element] = field(default_factory=dict)  # by layer and number
    sources: dict[str, tuple[str, str]] = field(default_factory=dict)  # of a layer's only input
    names: dict[str, str] = field(default_factory=dict)
    weights_bytes: int = 0
    foreign: list[str] = field(default_factory=list)


def read_ir(path: Path) -> IrFile:
    """Read a file. Raises NotIr if it is not one, OSError if it cannot be read."""
    if path.stat().st_size > _MAX_BYTES:
        raise NotIr(f"a graph of more than {_MAX_BYTES} bytes")
    try:
        root = _parsed(path)
    except (ET.ParseError, LookupError, ValueError) as error:  # the last two of an encoding
        raise NotIr(f"not well-formed XML: {error}") from None
    if root.tag != "net":
        raise NotIr(f"its root element is <{root.tag}>, not <net>")
    version = root.get("version", "")
    if version.isdecimal() and not _MIN_IR_VERSION <= _integer(version) <= _MAX_IR_VERSION:
        remedy = (
            "convert the model again with ovc" if _integer(version) < _MIN_IR_VERSION else "OpenVINO may be too old"
        )
        known = f"{_MIN_IR_VERSION} and {_MAX_IR_VERSION} are known"
        raise NotIr(f"version {version} of the format; {known}: {remedy}")
    graph = _Graph()
    for layer in root.iterfind("layers/layer"):
        _read_layer(layer, graph)
    for edge in root.iterfind("edges/edge"):
        graph.sources[edge.get("to-layer", "")] = (edge.get("from-layer", ""), edge.get("from-port", ""))
    if not graph.results:
        raise NotIr("it has no results")
    return IrFile(tuple(graph.parameters), tuple(_outputs(graph)), graph.weights_bytes, tuple(graph.foreign))


def _parsed(path: Path) -> Element:
    parser = ET.XMLParser()  # noqa: S314 - expat bounds the growth of entities; external ones are not read
    return ET.parse(path, parser).getroot()  # noqa: S314 - as above


def _read_layer(layer: Element, graph: _Graph) -> None:
    number, kind, data = layer.get("id", ""), layer.get("type", ""), layer.find("data")
    graph.names[number] = layer.get("name", "")
    if not _OPSET.match(layer.get("version", "opset1")):
        graph.foreign.append(f"{kind} ({layer.get('version')})")
    for output in layer.iterfind("output/port"):
        graph.ports[number, output.get("id", "")] = output
    if kind == "Parameter":
        port = layer.find("output/port")
        graph.parameters.append(
            TensorInfo(
                (port.get("names") if port is not None else "") or graph.names[number],
                _DATATYPES.get(_attribute(data, "element_type"), ""),
                _dims(port),
                f"of OpenVINO's type '{_attribute(data, 'element_type')}'",
            )
        )
    elif kind == "Result":
        graph.results.append((number, layer))
    elif kind == "Const":
        sizes = (_attribute(data, "offset"), _attribute(data, "size"))
        if not all(size.isdecimal() for size in sizes):
            raise NotIr(f"constant '{graph.names[number]}' has no offset and size")
        _check_size(graph.names[number], data, _integer(sizes[1]))
        graph.weights_bytes = max(graph.weights_bytes, sum(map(_integer, sizes)))


def _check_size(name: str, data: Element | None, size: int) -> None:
    """Raise NotIr if a constant has another size than its shape and type need."""
    bits = _BITS.get(_attribute(data, "element_type"))
    dims = [dim.strip() for dim in _attribute(data, "shape").split(",") if dim.strip()]
    if bits is None or not all(dim.isdecimal() for dim in dims):
        return
    if len(dims) > MAX_RANK:
        raise NotIr(f"constant '{name}' has {len(dims)} dimensions")
    expected = -(-prod(map(_integer, dims)) * bits // 8)
    if size != expected:
        raise NotIr(f"constant '{name}' has {size} bytes; its shape [{', '.join(dims)}] needs {expected}")


def _outputs(graph: _Graph) -> Iterator[TensorInfo]:
    for number, layer in graph.results:
        source = graph.sources.get(number)
        port = graph.ports.get(source) if source else None
        if source is None or port is None:
            raise NotIr(f"no edge leads to its result '{graph.names[number]}'")
        kind = _PRECISIONS.get(port.get("precision", ""), port.get("precision", ""))
        names = layer.get("output_names") or port.get("names") or graph.names[source[0]]
        yield TensorInfo(names, _DATATYPES.get(kind, ""), _dims(port), f"of OpenVINO's type '{kind}'")


def _attribute(element: Element | None, name: str) -> str:
    return "" if element is None else element.get(name, "")


def _integer(text: str) -> int:
    """Return a number of up to 64 bits, of which a text of digits may have more. Raises NotIr."""
    if len(text) > _MAX_DIGITS:
        raise NotIr(f"a number of {len(text)} digits")
    return int(text)


def _dims(port: Element | None) -> tuple[int, ...]:
    texts = [] if port is None else [(dim.text or "").strip() for dim in port.iterfind("dim")]
    # A dimension with bounds is written `1..8`.
    return tuple(_integer(text) if text.lstrip("-").isdecimal() else -1 for text in texts)


def _named(infos: tuple[TensorInfo, ...], declared: set[str]) -> tuple[TensorInfo, ...]:
    return tuple(TensorInfo(_chosen(info.name, declared), info.datatype, info.dims, info.native_type) for info in infos)


def _chosen(names: str, declared: set[str]) -> str:
    every = sorted(names.split(","))
    return next((name for name in every if name in declared), every[0])
