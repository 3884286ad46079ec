"""An ONNX model for ragged batches: SUM is the sum of each request's elements, DOUBLED is twice each of them."""

from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from tests.server.backends.onnxruntime.onnx_models import FP32, write_model

CONFIG = """
backend: "onnxruntime" max_batch_size: 8
input { name: "VALUES" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true }
output { name: "SUM" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "DOUBLED" data_type: TYPE_FP32 dims: [ -1 ] }
batch_input {
  kind: BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO target_name: "ENDS" data_type: TYPE_INT32 source_input: "VALUES"
}
batch_output { target_name: "DOUBLED" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "VALUES" }
"""


def write_ragged(directory: Path, config: str = CONFIG, *, values: tuple[int | str, ...] = ("elements",)) -> Path:
    """Write the model. A request is from one element of ENDS to the next."""
    nodes = [
        helper.make_node("CumSum", ["VALUES", "ZERO"], ["RUNNING"]),
        helper.make_node("Concat", ["NOTHING", "RUNNING"], ["SUMS"], axis=0),
        helper.make_node("Slice", ["ENDS", "FIRST", "ALL"], ["UPPER"]),
        helper.make_node("Slice", ["ENDS", "NONE", "LAST"], ["LOWER"]),
        helper.make_node("Gather", ["SUMS", "UPPER"], ["TO"]),
        helper.make_node("Gather", ["SUMS", "LOWER"], ["FROM"]),
        helper.make_node("Sub", ["TO", "FROM"], ["BETWEEN"]),
        helper.make_node("Unsqueeze", ["BETWEEN", "FIRST"], ["SUM"]),
        helper.make_node("Add", ["VALUES", "VALUES"], ["DOUBLED"]),
    ]
    constants = {
        "ZERO": np.array(0, np.int64),
        "NOTHING": np.zeros(1, np.float32),
        "NONE": np.array([0], np.int64),
        "FIRST": np.array([1], np.int64),
        "LAST": np.array([-1], np.int64),
        "ALL": np.array([2**31], np.int64),
    }
    return write_model(
        directory,
        nodes,
        {"VALUES": (FP32, values), "ENDS": (TensorProto.INT32, ["requests + 1"])},
        {"SUM": (FP32, ["requests", 1]), "DOUBLED": (FP32, ["elements"])},
        initializers=[numpy_helper.from_array(array, name) for name, array in constants.items()],
        config=config,
    )
