"""Trains a classifier of handwritten digits and writes models/digits/1/model.onnx.

    python examples/scripts/train_digits.py

Seconds; needs scikit-learn, numpy and onnx. A quarter of scikit-learn's digits is held out by a fixed seed; the
accuracy printed, and asserted by the tests, is that on the held-out quarter.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

MODEL = Path(__file__).resolve().parent.parent / "models" / "digits"
SEED = 7
INK = 16.0  # a pixel of the data set counts 0 to 16


@dataclass(frozen=True)
class Digits:
    """Images FP32 [n, 8, 8] of values 0..16, and the digit that each shows, INT64 [n]."""

    images: NDArray[np.float32]
    labels: NDArray[np.int64]


def main() -> None:
    """Train, write, and print the held-out accuracy."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--output", type=Path, default=MODEL / "1" / "model.onnx")
    options = arguments.parse_args()
    training, held_out = split()
    network = MLPClassifier((96,), alpha=0.3, learning_rate_init=3e-3, max_iter=400, tol=0, random_state=SEED)
    network.fit(flatten(training.images), training.labels)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(to_onnx(network), str(options.output))
    options.output.parent.with_name("labels.txt").write_text("".join(f"{digit}\n" for digit in range(10)))
    accuracy = network.score(flatten(held_out.images), held_out.labels)
    print(f"accuracy on {len(held_out.labels)} held-out digits: {accuracy:.4f}")


def split() -> tuple[Digits, Digits]:
    """The training digits and the held-out ones, the same at each call."""
    digits = load_digits()
    parts = train_test_split(
        digits.images.astype(np.float32),
        digits.target.astype(np.int64),
        test_size=0.25,
        random_state=SEED,
        stratify=digits.target,
    )
    return Digits(parts[0], parts[2]), Digits(parts[1], parts[3])


def flatten(images: NDArray[np.float32]) -> NDArray[np.float32]:
    """[n, 8, 8] of 0..16 → [n, 64] of 0..1, as the first two nodes of the graph do."""
    return images.reshape(len(images), -1) / np.float32(INK)


def to_onnx(network: MLPClassifier) -> ModelProto:
    """Input `image` FP32 [batch, 8, 8] of 0..16; output `probabilities` FP32 [batch, 10]."""
    (hidden, output), (hidden_bias, output_bias) = network.coefs_, network.intercepts_
    weights = {
        "ink": np.array(INK),
        "hidden.weight": hidden,
        "hidden.bias": hidden_bias,
        "output.weight": output,
        "output.bias": output_bias,
    }
    graph = helper.make_graph(
        [
            helper.make_node("Flatten", ["image"], ["pixels"]),
            helper.make_node("Div", ["pixels", "ink"], ["scaled"]),
            helper.make_node("Gemm", ["scaled", "hidden.weight", "hidden.bias"], ["sums"]),
            helper.make_node("Relu", ["sums"], ["features"]),
            helper.make_node("Gemm", ["features", "output.weight", "output.bias"], ["logits"]),
            helper.make_node("Softmax", ["logits"], ["probabilities"], axis=1),
        ],
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 8, 8])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", 10])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return model


if __name__ == "__main__":
    main()
