"""The ensemble of `--pipeline`: written, checked, and served."""

import json
import shutil
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from conch.check.check_paths import check_paths
from conch.domain.config.pbtxt import parse_pbtxt
from conch.domain.files.signature import TensorInfo
from conch.measure.advise.advice_facts import DeclaredTensors, ModelFacts, ModelForm
from conch.measure.advise.ensemble import NotConnectable, plan_ensemble
from tests.measure.advise.make_models import EXAMPLES
from tests.measure.advise.test_cases import run
from tests.support.server_process import ConchProcess

MACHINE = ("--machine", "4 cores, 16GiB, AMD")


def write_linear(path: Path, source: str, target: str, matrix: np.ndarray) -> None:
    rows, columns = matrix.shape
    graph = helper.make_graph(
        [helper.make_node("MatMul", [source, "w"], [target])],
        "linear",
        [helper.make_tensor_value_info(source, TensorProto.FLOAT, ["n", rows])],
        [helper.make_tensor_value_info(target, TensorProto.FLOAT, ["n", columns])],
        initializer=[numpy_helper.from_array(matrix.astype(np.float32), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    path.write_bytes(model.SerializeToString())


@pytest.mark.slow
def test_the_ensemble_is_served(tmp_path: Path) -> None:
    write_linear(tmp_path / "scale.onnx", "x", "features", np.eye(3) * 2)
    write_linear(tmp_path / "sum.onnx", "vector", "total", np.ones((3, 1)))
    status, printed = run(["scale.onnx", "--also", "sum.onnx", "--pipeline", *MACHINE, "--write", "out"], tmp_path)
    assert status == 0, printed
    assert 'input_map { key: "vector" value: "scale.features" }' in printed
    assert not check_paths([tmp_path / "out"]).findings
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 3], "data": [1, 2, 3, 4, 5, 6]}]}
    with ConchProcess(tmp_path / "out", log=tmp_path / "log") as conch:
        request = urllib.request.Request(
            f"http://{conch.http}/v2/models/pipeline/infer", json.dumps(body).encode(), method="POST"
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            outputs = json.load(answer)["outputs"]
    assert [(output["name"], output["shape"], output["data"]) for output in outputs] == [("total", [2, 1], [12, 30])]


def test_stages_of_the_example_give_its_ensemble(tmp_path: Path) -> None:
    names = ("preprocess", "detector", "postprocess")
    for name in names:
        shutil.copytree(EXAMPLES / name, tmp_path / name)
    command = [names[0], "--also", names[1], "--also", names[2], "--pipeline", *MACHINE, "--write", "out"]
    status, printed = run(command, tmp_path)
    assert status == 0, printed
    assert not check_paths([tmp_path / "out"]).findings
    written, example = (
        parse_pbtxt((folder / "config.pbtxt").read_text(), str(folder))
        for folder in (tmp_path / "out" / "pipeline", EXAMPLES / "detect")
    )
    assert written.max_batch_size == example.max_batch_size
    assert list(written.input) == list(example.input)
    assert list(written.output) == list(example.output)
    for ours, theirs in zip(written.ensemble_scheduling.step, example.ensemble_scheduling.step, strict=True):
        assert ours.model_name == theirs.model_name
        assert ours.input_map.keys() == theirs.input_map.keys()
        assert ours.output_map.keys() == theirs.output_map.keys()


def step(name: str, inputs: str, outputs: str, batch: int = 8) -> tuple[ModelFacts, int]:
    """Return a model whose tensors are written as "a:FP32:3,4 b:INT64:1"."""

    def tensors(text: str) -> tuple[TensorInfo, ...]:
        parts = (part.split(":") for part in text.split())
        return tuple(TensorInfo(name, datatype, tuple(map(int, dims.split(",")))) for name, datatype, dims in parts)

    declared = DeclaredTensors(batch, tensors(inputs), tensors(outputs))
    return ModelFacts(name=name, path=Path(name), form=ModelForm.PYTHON, size=0, declared=declared), batch


def test_inputs_that_no_step_gives_are_those_of_the_ensemble() -> None:
    ensemble = plan_ensemble(
        [step("a", "x:FP32:4", "y:FP32:2"), step("b", "y:FP32:2 mask:BOOL:2", "x:FP32:1 z:BYTES:1", batch=4)]
    )
    message = parse_pbtxt(ensemble.text, "test")
    assert message.max_batch_size == 4
    assert [tensor.name for tensor in message.input] == ["x", "mask"]
    assert [tensor.name for tensor in message.output] == ["b.x", "z"]


def test_without_batches_of_one_step_the_batch_is_a_dimension() -> None:
    ensemble = plan_ensemble([step("a", "x:FP32:4", "y:FP32:2"), step("b", "v:FP32:-1,2", "z:FP32:1", batch=0)])
    message = parse_pbtxt(ensemble.text, "test")
    assert message.max_batch_size == 0
    assert list(message.input[0].dims) == [-1, 4]
    assert list(message.output[0].dims) == [1]


def test_its_name_is_free() -> None:
    steps = [step("pipeline", "x:FP32:4", "y:FP32:2"), step("b", "y:FP32:2", "z:FP32:2")]
    assert plan_ensemble(steps).name == "pipeline_ensemble"


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([step("a", "x:FP32:4", "y:FP32:2"), step("b", "v:FP32:3", "z:FP32:1")], "no input of 'b' fits an output"),
        ([step("a", "x:FP32:4", "y:FP16:2"), step("b", "v:FP32:2", "z:FP32:1")], "no input of 'b' fits an output"),
        (
            [step("a", "x:FP32:4", "y:FP32:2 z:FP32:2"), step("b", "v:FP32:2", "z:FP32:1")],
            "input 'v' of 'b' fits several outputs of 'a': 'y', 'z'",
        ),
        (
            [step("a", "x:FP32:4", "y:FP32:2"), step("b", "u:INT8:1", "w:FP32:2"), step("c", "y:FP32:2", "z:FP32:1")],
            "no input of 'b' fits an output",
        ),
        (
            [step("a", "x:FP32:4", "y:FP32:2"), step("b", "y:FP32:2", "w:INT8:1"), step("c", "y:FP32:2", "z:FP32:1")],
            "no later model takes an output of 'b'",
        ),
    ],
)
def test_steps_that_do_not_connect(steps: list[tuple[ModelFacts, int]], message: str) -> None:
    with pytest.raises(NotConnectable) as refused:
        plan_ensemble(steps)
    assert message in str(refused.value)


def test_a_pipeline_that_does_not_connect_has_a_note(tmp_path: Path) -> None:
    write_linear(tmp_path / "scale.onnx", "x", "features", np.eye(3))
    write_linear(tmp_path / "wide.onnx", "vector", "total", np.ones((5, 1)))
    status, printed = run(["scale.onnx", "--also", "wide.onnx", "--pipeline", *MACHINE], tmp_path)
    assert status == 0
    assert "Note: the ensemble's config.pbtxt is not written: no input of 'wide' fits an output" in printed
