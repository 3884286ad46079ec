"""The examples of the Python backend's own kinds, with their client."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.server.process import ConchProcess

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "python_backend"
sys.path.insert(0, str(FOLDER))

from client import ask, ask_all  # noqa: E402 - found by the line above


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[triton.InferenceServerClient]:
    log = tmp_path_factory.mktemp("python_backend") / "log"
    with (
        ConchProcess(FOLDER / "models", log=log) as conch,
        triton.InferenceServerClient(conch.http, network_timeout=60) as one,
    ):
        yield one


def test_every_model_answers(client: triton.InferenceServerClient) -> None:
    answers = {
        model: {name: values.tolist() for name, values in outputs.items()} for model, outputs in ask_all(client).items()
    }
    sums, differences = [10, 11, 12, 13], [-10, -9, -8, -7]
    assert answers == {
        "add_sub": {"OUTPUT0": sums, "OUTPUT1": differences},
        "bls_sync": {"OUTPUT0": sums, "OUTPUT1": differences},
        "bls_async": {"OUTPUT0": sums, "OUTPUT1": [-value for value in differences]},
        "bls_decoupled": {"SUM": [45]},
    }


def test_the_error_of_a_called_model_is_passed_on(client: triton.InferenceServerClient) -> None:
    values = np.zeros(4, np.float32)
    with pytest.raises(InferenceServerException, match="'nobody' is not ready") as caught:
        ask(client, "bls_sync", MODEL_NAME=np.array([b"nobody"], dtype=np.object_), INPUT0=values, INPUT1=values)
    assert caught.value.status() == "404"
