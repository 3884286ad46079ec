"""Small ONNX models."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
from onnx import TensorProto, helper

Dims = Sequence[int | str | None]

FP32 = TensorProto.FLOAT


def write_model(
    directory: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, Dims]],
    outputs: Mapping[str, tuple[int, Dims]],
    *,
    initializers: Sequence[onnx.TensorProto] = (),
    filename: str = "1/model.onnx",
    config: str | None = None,
) -> Path:
    """Write a model directory; inputs and outputs are name → (element type, dimensions)."""
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, *kind) for name, kind in inputs.items()],
        [helper.make_tensor_value_info(name, *kind) for name, kind in outputs.items()],
        initializer=list(initializers),
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path = directory / filename
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    if config is not None:
        (directory / "config.pbtxt").write_text(config)
    return directory


def write_identity(directory: Path, element: int, dims: Dims, *, config: str | None = None) -> Path:
    """Write a model with one input IN and one output OUT, equal."""
    node = helper.make_node("Identity", ["IN"], ["OUT"])
    return write_model(directory, [node], {"IN": (element, dims)}, {"OUT": (element, dims)}, config=config)
