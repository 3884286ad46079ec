"""What a configuration says of inputs, outputs and the model itself, from the file to the client of either protocol."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import helper, numpy_helper

from tests.server.backends.onnxruntime.onnx_models import FP32, write_model
from tests.server.clients import Client
from tests.support.models import ECHO, tensor, write_ensemble, write_identity, write_python
from tests.support.server_process import ConchProcess

# Which inputs came, by the first letters of their names.
NAMES = """
names = "".join(sorted(tensor.name()[0] for tensor in request.inputs()))
batch = request.inputs()[0].as_numpy().shape[0]
return pb_utils.InferenceResponse([pb_utils.Tensor("NAMES", np.array([[names]] * batch, dtype=object))])
"""
OPTIONAL = (
    f"max_batch_size: 4 dynamic_batching {{ }} input [{tensor('A', 'FP32', 1)}, "
    f"{tensor('B', 'FP32', 1, extra='optional: true')}, {tensor('C', 'FP32', 1, extra='optional: true')}] "
    f"output {tensor('NAMES', 'STRING', 1)}"
)
# Outputs say what shape the model saw.
SHAPES = """
array = request.inputs()[0].as_numpy()
seen = np.array([array.shape], np.int64)
return pb_utils.InferenceResponse([pb_utils.Tensor("SEEN", seen), pb_utils.Tensor("OUT", array)])
"""
WARMED = """
def initialize(self, args):
    self.path = args["model_repository"] + "/seen"
    self.name = args["model_instance_name"]

def execute(self, requests):
    arrays = [request.inputs()[0].as_numpy() for request in requests]
    with open(self.path, "a") as file:
        file.write(json.dumps([self.name, [array.shape for array in arrays]]) + chr(10))
    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]) for array in arrays]
"""


def write_models(models: Path) -> None:
    write_python(models, "optional", OPTIONAL, NAMES)
    write_ensemble(
        models,
        "optional_above",
        f"max_batch_size: 4 input [{tensor('X', 'FP32', 1)}, {tensor('Y', 'FP32', 1, extra='optional: true')}]",
        f"output {tensor('NAMES', 'STRING', 1)}",
        ("optional", {"A": "X", "B": "Y"}, {"NAMES": "NAMES"}),
    )
    write_model(
        models / "optional_onnx",
        [helper.make_node("Add", ["IN", "BIAS"], ["OUT"])],
        {"IN": (FP32, [1]), "BIAS": (FP32, [1])},
        {"OUT": (FP32, [1])},
        initializers=[numpy_helper.from_array(np.array([10], np.float32), "BIAS")],
        config=f"input [{tensor('IN', 'FP32', 1)}, {tensor('BIAS', 'FP32', 1, extra='optional: true')}] "
        f"output {tensor('OUT', 'FP32', 1)}",
    )
    for name, batch, dims, shape in (
        ("reshaped", 0, (-1, 4), "shape: [ -1, 2, 2 ]"),
        ("reshaped_batch", 4, (6,), "shape: [ 2, 3 ]"),
        ("reshaped_to_nothing", 4, (1,), ""),
    ):
        reshape = f"reshape {{ {shape} }}"
        rank = shape.count(",") + (2 if batch else 1) if shape else 1
        write_python(
            models,
            name,
            f"max_batch_size: {batch} input {tensor('IN', 'FP32', *dims, extra=reshape)} "
            f"output [{tensor('OUT', 'FP32', *dims, extra=reshape)}, {tensor('SEEN', 'INT64', rank)}]",
            SHAPES,
        )
    labelled = [tensor(f"OUTPUT{n}", "FP32", 3, extra=f'label_filename: "labels{n}.txt"') for n in (0, 1)]
    inputs = ", ".join(tensor(f"INPUT{n}", "FP32", 3) for n in range(3))
    outputs = ", ".join([*labelled, tensor("OUTPUT2", "FP32", 3)])
    write_python(models, "labelled", f"max_batch_size: 2 input [{inputs}] output [{outputs}]", ECHO)
    (models / "labelled" / "labels0.txt").write_text("ant\nbee\ncat\n")
    (models / "labelled" / "labels1.txt").write_text("Ameise\nBiene\n")
    write_identity(
        models, "tagged", extra='metric_tags { key: "team" value: "red" } metric_tags { key: "a-b" value: "1" }'
    )
    sample = 'model_warmup {{ name: "{}" batch_size: {} count: {} inputs {{ key: "INPUT0" value {{ {} }} }} }}'
    write_python(
        models,
        "warmed",
        "max_batch_size: 4 instance_group [{ kind: KIND_CPU count: 2 }] "
        + sample.format("zeros", 1, 2, "data_type: TYPE_FP32 dims: 2 zero_data: true")
        + sample.format("batch", 3, 1, "data_type: TYPE_FP32 dims: 5 random_data: true")
        + f"input {tensor('INPUT0', 'FP32', -1)} output {tensor('OUTPUT0', 'FP32', -1)}",
        "return None",
        more=WARMED,
    )


@pytest.fixture(scope="module")
def conch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    root = tmp_path_factory.mktemp("declarations")
    write_models(root / "models")
    with ConchProcess(root / "models", log=root / "log") as server:
        yield server


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, conch: ConchProcess) -> Iterator[Client]:
    with Client(conch, request.param) as made:
        yield made


def column(value: float, rows: int = 1) -> np.ndarray:
    return np.full((rows, 1), value, np.float32)


@pytest.mark.parametrize("given", ["A", "AB", "AC", "ABC"])
def test_optional_inputs_come_as_sent(client: Client, given: str) -> None:
    result = client.ask("optional", {name: column(1, rows=2) for name in given})
    assert [row[0].decode() for row in result.as_numpy("NAMES")] == [given, given]


def test_optional_inputs_of_an_ensemble_reach_its_steps_or_not(client: Client) -> None:
    for given, seen in (("X", "A"), ("XY", "AB")):
        result = client.ask("optional_above", {name: column(1) for name in given})
        assert result.as_numpy("NAMES")[0, 0].decode() == seen


def test_optional_inputs_of_an_onnx_model_have_its_defaults(client: Client) -> None:
    data, bias = np.array([1], np.float32), np.array([2], np.float32)
    assert client.ask("optional_onnx", {"IN": data}).as_numpy("OUT").tolist() == [11]
    assert client.ask("optional_onnx", {"IN": data, "BIAS": bias}).as_numpy("OUT").tolist() == [3]


@pytest.mark.parametrize(
    ("model", "shape", "seen"),
    [
        ("reshaped", (3, 4), [3, 2, 2]),
        ("reshaped", (0, 4), [0, 2, 2]),
        ("reshaped_batch", (2, 6), [2, 2, 3]),
        ("reshaped_to_nothing", (3, 1), [3]),
    ],
)
def test_the_model_sees_its_shape_and_the_client_its_own(
    client: Client, model: str, shape: tuple[int, ...], seen: list[int]
) -> None:
    data = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    result = client.ask(model, {"IN": data})
    np.testing.assert_array_equal(result.as_numpy("OUT"), data)
    assert result.as_numpy("SEEN").ravel().tolist() == seen


def test_every_output_has_its_own_labels(client: Client) -> None:
    data = np.array([[1, 3, 2]], np.float32)
    module = client._module
    wanted = [module.InferRequestedOutput(f"OUTPUT{n}", class_count=2) for n in range(3)]
    result = client.client.infer("labelled", client.inputs({f"INPUT{n}": data for n in range(3)}), outputs=wanted)
    got = [[text.decode() for text in result.as_numpy(f"OUTPUT{n}")[0]] for n in range(3)]
    assert got == [
        ["3.000000:1:bee", "2.000000:2:cat"],
        ["3.000000:1:Biene", "2.000000:2"],
        ["3.000000:1", "2.000000:2"],
    ]


def test_metric_tags_are_labels_of_all_families_of_the_model(conch: ConchProcess) -> None:
    lines = [line for line in conch.metrics().splitlines() if 'model="tagged"' in line]
    assert len(lines) > 10
    assert all('_team="red"' in line and '_a_b="1"' in line for line in lines)


def test_every_instance_has_answered_all_samples_before_the_model_is_ready(conch: ConchProcess) -> None:
    with Client(conch, "http") as client:
        assert client.client.get_model_config("warmed")["model_warmup"][1]["name"] == "batch"
        # The model is asked, so that nothing of the warm-up can come later.
        client.ask("warmed", {"INPUT0": np.zeros((1, 1), np.float32)})
        statistics = client.statistics("warmed")
    assert (statistics["inference_count"], statistics["execution_count"]) == (1, 1)
    (path,) = (Path(conch.log).parent / "models" / "warmed").rglob("seen")
    seen = [json.loads(line) for line in path.read_text().splitlines()][:-1]
    for instance in ("warmed_0_0", "warmed_0_1"):
        batches = [batch for name, batch in seen if name == instance]
        assert batches == [[[1, 2]], [[1, 2]], [[1, 5]] * 3]
