"""Ragged batches on a running server: requests of different shapes share an execution, each with its own answer."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.server.backends.onnxruntime.ragged_model import CONFIG, write_ragged
from tests.server.clients import Client
from tests.support.models import tensor, write_python
from tests.support.server_process import ConchProcess

# Three requests make a batch, and nothing but three.
THREE = "dynamic_batching { preferred_batch_size: [ 3 ] max_queue_delay_microseconds: 30000000 }"
SEEN = """
array = request.inputs()[0].as_numpy()
return pb_utils.InferenceResponse([pb_utils.Tensor("SHAPE", np.array([array.shape], np.int64))])
"""


@pytest.fixture(scope="module")
def conch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    root = tmp_path_factory.mktemp("ragged")
    ragged = f"max_batch_size: 8 {THREE} input {tensor('VALUES', 'FP32', -1, -1, extra='allow_ragged_batch: true')} "
    for protocol in ("http", "grpc"):
        write_ragged(root / "models" / f"onnx_{protocol}", CONFIG + THREE)
        write_python(root / "models", f"python_{protocol}", f"{ragged} output {tensor('SHAPE', 'INT64', 3)}", SEEN)
    with ConchProcess(root / "models", log=root / "log") as server:
        yield server


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_onnx_models_get_them_joined_with_the_offsets(conch: ConchProcess, protocol: str) -> None:
    model = f"onnx_{protocol}"

    def ask(length: int) -> tuple[float, list[float]]:
        with Client(conch, protocol) as client:
            result = client.ask(model, {"VALUES": np.full((1, length), length, np.float32)})
            return float(result.as_numpy("SUM")[0, 0]), result.as_numpy("DOUBLED")[0].tolist()

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(ask, (1, 2, 5))) == [(n * n, [2.0 * n] * n) for n in (1, 2, 5)]
    with Client(conch, protocol) as client:
        statistics = client.statistics(model)
    assert (int(statistics["inference_count"]), int(statistics["execution_count"])) == (3, 1)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_python_models_see_each_request_in_its_own_shape(conch: ConchProcess, protocol: str) -> None:
    model = f"python_{protocol}"

    def ask(length: int) -> list[int]:
        with Client(conch, protocol) as client:
            return list(client.ask(model, {"VALUES": np.zeros((1, length, 4), np.float32)}).as_numpy("SHAPE")[0])

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(ask, (1, 2, 5))) == [[1, length, 4] for length in (1, 2, 5)]
    with Client(conch, protocol) as client:
        assert int(client.statistics(model)["execution_count"]) == 1
