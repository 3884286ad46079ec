"""The signature of an ONNX file, compared with onnxruntime's; and invalid bytes."""

from contextlib import suppress
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from conch.domain.files.onnx_file import NotOnnx, read_onnx
from conch.server.backends.onnxruntime.backend import _signature
from tests.server.backends.onnxruntime.onnx_models import FP32, write_model

MODELS = sorted((Path(__file__).parents[4] / "examples" / "models").glob("*/1/model.onnx"))


def names(infos: object) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(info.name, info.datatype, info.dims) for info in infos]  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", MODELS, ids=[path.parents[1].name for path in MODELS])
def test_the_signature_is_the_one_that_onnxruntime_reads(path: Path) -> None:
    mine, theirs = read_onnx(path).signature, _signature(ort.InferenceSession(path))
    assert names(mine.inputs) == names(theirs.inputs)
    assert names(mine.outputs) == names(theirs.outputs)
    assert names(mine.optional_inputs) == names(theirs.optional_inputs)


def test_inputs_with_a_default_are_optional(tmp_path: Path) -> None:
    nodes = [helper.make_node("Add", ["A", "B"], ["C"])]
    default = numpy_helper.from_array(np.ones(4, np.float32), "B")
    inputs = {"A": (FP32, ["n", 4]), "B": (FP32, [4])}
    write_model(tmp_path, nodes, inputs, {"C": (FP32, ["n", 4])}, initializers=[default])
    signature = read_onnx(tmp_path / "1" / "model.onnx").signature
    assert [info.name for info in signature.inputs] == ["A"]
    assert [info.name for info in signature.optional_inputs] == ["B"]


def test_external_weights_are_listed(tmp_path: Path) -> None:
    default = numpy_helper.from_array(np.ones(4, np.float32), "B")
    default.data_location = TensorProto.EXTERNAL
    default.external_data.add(key="location", value="weights.bin")
    default.ClearField("raw_data")
    nodes = [helper.make_node("Add", ["A", "B"], ["C"])]
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info("A", FP32, [4])],
            [helper.make_tensor_value_info("C", FP32, [4])],
            initializer=[default],
        )
    )
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    assert read_onnx(path).external == ("weights.bin",)


def test_a_truncated_file(tmp_path: Path) -> None:
    whole = MODELS[0].read_bytes()
    path = tmp_path / "model.onnx"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(NotOnnx, match="truncated"):
        read_onnx(path)


@given(st.binary(min_size=1, max_size=200))
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.onnx"
    path.write_bytes(data)
    with suppress(NotOnnx):
        read_onnx(path)
