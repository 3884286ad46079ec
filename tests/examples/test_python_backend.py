"""The examples of the Python backend's own kinds, with their client."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.support.server_process import ConchProcess

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "python_backend"
sys.path.insert(0, str(FOLDER))

from client import ask, ask_all, ask_for_many, ask_in_sequence, own_metrics  # noqa: E402 - found by the line above


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    with ConchProcess(FOLDER / "models", log=tmp_path_factory.mktemp("python_backend") / "log") as conch:
        yield conch


@pytest.fixture(scope="module")
def client(server: ConchProcess) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(server.http, network_timeout=60) as client:
        yield client


@pytest.fixture
def streaming(server: ConchProcess) -> Iterator[grpc.InferenceServerClient]:
    with grpc.InferenceServerClient(server.grpc) as client:
        yield client


def test_every_model_answers(client: triton.InferenceServerClient) -> None:
    answers = {
        model: {name: values.tolist() for name, values in outputs.items()} for model, outputs in ask_all(client).items()
    }
    sums, differences = [10, 11, 12, 13], [-10, -9, -8, -7]
    assert answers == {
        "add_sub": {"OUTPUT0": sums, "OUTPUT1": differences},
        "auto_complete": {"OUTPUT0": [sums], "OUTPUT1": [differences]},
        "bls_sync": {"OUTPUT0": sums, "OUTPUT1": differences},
        "bls_async": {"OUTPUT0": sums, "OUTPUT1": [-value for value in differences]},
        "bls_decoupled": {"SUM": [45]},
        "custom_metrics": {"MEAN": [1.5]},
    }


def test_the_error_of_a_called_model_is_passed_on(client: triton.InferenceServerClient) -> None:
    values = np.zeros(4, np.float32)
    with pytest.raises(InferenceServerException, match="'nobody' is not ready") as caught:
        ask(client, "bls_sync", MODEL_NAME=np.array([b"nobody"], dtype=np.object_), INPUT0=values, INPUT1=values)
    assert caught.value.status() == "404"


@pytest.mark.parametrize("values", [[3, 1, 2], []])
def test_a_decoupled_model_sends_one_response_for_each_element(
    streaming: grpc.InferenceServerClient, values: list[int]
) -> None:
    responses = ask_for_many(streaming, "repeat", IN=np.array(values, np.int32))
    assert [response["OUT"].tolist() for response in responses] == [[value] for value in values]


@pytest.mark.parametrize("value", [0, 1, 5])
def test_a_decoupled_model_responds_from_its_own_threads(streaming: grpc.InferenceServerClient, value: int) -> None:
    responses = ask_for_many(streaming, "square", IN=np.array([value], np.int32))
    assert sum(response["OUT"].item() for response in responses) == value**2


def test_sequences_are_kept_apart_and_restart(client: triton.InferenceServerClient) -> None:
    assert ask_in_sequence(client, "accumulate", 1, [1, 2, 3]) == [1, 3, 6]
    assert ask_in_sequence(client, "accumulate", 1, [10, 20]) == [10, 30]
    with pytest.raises(InferenceServerException, match="must specify the START flag"):
        client.infer("accumulate", _one(5), sequence_id=1)


def test_the_configuration_comes_from_the_code(client: triton.InferenceServerClient) -> None:
    config = client.get_model_config("auto_complete")
    assert (config["max_batch_size"], [tensor["name"] for tensor in config["input"]]) == (4, ["INPUT0", "INPUT1"])
    assert "dynamic_batching" in config


def test_a_models_own_metrics_are_on_the_page(server: ConchProcess, client: triton.InferenceServerClient) -> None:
    page = f"http://127.0.0.1:{server.ports['metrics']}/metrics"
    labels = '{model="custom_metrics",version="1"}'
    ask(client, "custom_metrics", IN=np.array([4, 8], np.float32))
    before = _values(own_metrics(page))
    ask(client, "custom_metrics", IN=np.array([1, 2, 3], np.float32))
    after = _values(own_metrics(page))
    assert after[f"example_values_total{labels}"] == before[f"example_values_total{labels}"] + 3
    assert after[f"example_last_mean{labels}"] == 2


def _one(value: int) -> list[triton.InferInput]:
    tensor = triton.InferInput("IN", [1, 1], "INT32")
    return [tensor.set_data_from_numpy(np.array([[value]], np.int32))]


def _values(lines: list[str]) -> dict[str, float]:
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}
