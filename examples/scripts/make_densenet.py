"""Makes models/densenet_onnx/1/model.onnx and its labels from the DenseNet-121 inside the `onnx` package.

    python examples/scripts/make_densenet.py

The package carries the graph for its own tests: a batch of exactly one, scores as [1, 1000, 1, 1], and every
weight 0.02, so that each class gets the same score for any image. Here the batch axis becomes free, the scores
become [batch, 1000], and the weights become a fixed noise that the graph computes when it is loaded, which keeps
the file small. Structure and cost are DenseNet's; it is untrained, and its scores mean nothing. They only differ
from class to class and from image to image, so that a mixed-up batch would show.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper, version_converter

MODEL = Path(__file__).resolve().parent.parent / "models" / "densenet_onnx"
OPSET = 17
IR_VERSION = 8  # from 4 on initializers are not inputs, and onnxruntime may fold them
CLASSES = 1000

# Batch normalisation that changes nothing: parameter name ending -> value.
_IDENTITY = {"bn_scale_0": 1.0, "bn_bias_0": 0.0, "bn_mean_0": 0.0, "bn_var_0": 1.0, "bn_w_0": 1.0, "bn_b_0": 0.0}


def main() -> None:
    """Write the model and its labels."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--output", type=Path, default=MODEL / "1" / "model.onnx")
    options = arguments.parse_args()
    model = make_densenet()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, str(options.output))
    labels = "".join(f"class_{index:04d}\n" for index in range(CLASSES))
    options.output.parent.with_name("labels.txt").write_text(labels)


def make_densenet() -> ModelProto:
    """Input `data_0` FP32 [batch, 3, 224, 224], output `fc6_1` FP32 [batch, 1000]."""
    package = Path(onnx.__file__).parent
    source = onnx.load(package / "backend" / "test" / "data" / "light" / "light_densenet121.onnx")
    model = version_converter.convert_version(source, OPSET)
    model.ir_version = IR_VERSION
    free_batch_axis(model.graph)
    flatten_scores(model.graph)
    vary_weights(model.graph)
    onnx.checker.check_model(model, full_check=True)
    return model


def free_batch_axis(graph: GraphProto) -> None:
    """Name the first axis of the image input `batch`, and forget shapes that were inferred for a batch of one."""
    image = next(value for value in graph.input if value.name == "data_0")
    image.type.tensor_type.shape.dim[0].dim_param = "batch"
    del graph.input[:], graph.value_info[:]
    graph.input.append(image)


def flatten_scores(graph: GraphProto) -> None:
    """Turn [batch, 1000, 1, 1] into [batch, 1000] under the same output name."""
    last = next(node for node in graph.node if "fc6_1" in node.output)
    last.output[0] = "fc6_1_map"
    graph.node.append(helper.make_node("Flatten", ["fc6_1_map"], ["fc6_1"], axis=1))
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info("fc6_1", TensorProto.FLOAT, ["batch", CLASSES]))


def vary_weights(graph: GraphProto) -> None:
    """Replace constant convolution weights by noise, and each batch normalisation by one that changes nothing."""
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    weights = [node for node in graph.node if node.op_type == "ConstantOfShape" and _is_weight(node.output[0])]
    largest = max(int(np.prod(shapes[node.input[0]])) for node in weights)
    for tensor in graph.initializer:
        value = _IDENTITY.get(tensor.name.rpartition("/")[2])
        if value is not None:
            tensor.CopyFrom(_constant(tensor.name, np.full(tensor.dims, value, dtype=np.float32)))
    nodes = list(_noise_nodes(graph, largest))
    for node in graph.node:
        if node in weights:
            nodes += _weight_nodes(graph, node.output[0], shapes[node.input[0]])
        else:
            _set_identity(node)
            nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)


def _is_weight(name: str) -> bool:
    return name.endswith("_w_0") and not name.endswith("bn_w_0")


def _set_identity(node: NodeProto) -> None:
    if node.op_type == "ConstantOfShape":
        value = _IDENTITY.get(node.output[0].rpartition("/")[2], 0.0)
        node.attribute[0].t.CopyFrom(_constant("", np.array([value], dtype=np.float32)))


def _noise_nodes(graph: GraphProto, length: int) -> list[NodeProto]:
    """`noise` FP32 [length], even in -1..1: the fraction of a large multiple of a sine, in double precision."""
    constants = {"zero": 0, "one": 1, "two": 2, "length": length, "angle": 12.9898, "stretch": 43758.5453}
    for name, value in constants.items():
        graph.initializer.append(_constant(f"noise/{name}", np.array(value, dtype=np.float64)))
    chain = (
        ("Range", ("zero", "length", "one"), "index"),
        ("Mul", ("index", "angle"), "turned"),
        ("Sin", ("turned",), "wave"),
        ("Mul", ("wave", "stretch"), "stretched"),
        ("Floor", ("stretched",), "whole"),
        ("Sub", ("stretched", "whole"), "fraction"),
        ("Mul", ("fraction", "two"), "doubled"),
        ("Sub", ("doubled", "one"), "centred"),
    )
    nodes = [
        helper.make_node(op, [f"noise/{name}" for name in inputs], [f"noise/{output}"]) for op, inputs, output in chain
    ]
    return [*nodes, helper.make_node("Cast", ["noise/centred"], ["noise"], to=TensorProto.FLOAT)]


def _weight_nodes(graph: GraphProto, name: str, shape: NDArray[np.int64]) -> list[NodeProto]:
    """One weight: the first elements of the noise, in its shape, scaled after He so that signals keep their size."""
    count, fan_in = int(np.prod(shape)), int(np.prod(shape[1:]))
    graph.initializer.extend(
        (
            _constant(f"{name}/from", np.array([0], dtype=np.int64)),
            _constant(f"{name}/to", np.array([count], dtype=np.int64)),
            _constant(f"{name}/scale", np.array(np.sqrt(6 / fan_in), dtype=np.float32)),
        )
    )
    return [
        helper.make_node("Slice", ["noise", f"{name}/from", f"{name}/to"], [f"{name}/flat"]),
        helper.make_node("Reshape", [f"{name}/flat", f"{name}__SHAPE"], [f"{name}/shaped"]),
        helper.make_node("Mul", [f"{name}/shaped", f"{name}/scale"], [name]),
    ]


def _constant(name: str, value: NDArray[Any]) -> TensorProto:
    return numpy_helper.from_array(value, name)


if __name__ == "__main__":
    main()
