"""`conch run` of a pickle imports its libraries while the server starts."""

import time
from pathlib import Path

import psutil
import pytest

from conch.clients.run.preloading import preloading
from tests.server.backends.makers import onnx_doubling

joblib = pytest.importorskip("joblib", reason="needs joblib, of the extra dev-all, to write a model")
sklearn_linear = pytest.importorskip(
    "sklearn.linear_model", reason="needs scikit-learn, of the extra dev-all, to write one"
)

FLAG = "--allow-pickled-models"
TIMEOUT_S = 60


@pytest.fixture
def pickle(tmp_path: Path) -> str:
    path = tmp_path / "model.joblib"
    joblib.dump(sklearn_linear.LogisticRegression().fit([[0.0], [1.0]], [0, 1]), path)
    return str(path)


def test_a_pickle_that_may_be_loaded_has_its_libraries_imported(pickle: str) -> None:
    with preloading([pickle, FLAG, "--port=0"]) as fork_server:
        assert fork_server is not None
        process = psutil.Process(fork_server.pid)
        deadline = time.monotonic() + TIMEOUT_S
        while not any("sklearn" in region.path for region in process.memory_maps()):
            assert time.monotonic() < deadline, "scikit-learn is not imported"
            time.sleep(0.05)
    assert not process.is_running()


def test_other_models_start_no_process(pickle: str, tmp_path: Path) -> None:
    onnx_doubling(tmp_path / "plain", ["n", 3])
    for arguments in ([pickle], [str(tmp_path / "plain/1/model.onnx"), FLAG], [str(tmp_path), FLAG], ["\0", FLAG]):
        with preloading(arguments) as fork_server:
            assert fork_server is None
