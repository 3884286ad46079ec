"""`conch run` of pickles, programs of torch.export and code imports their libraries while the server starts."""

import json
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from conch.clients.run.preloading import preloading
from tests.clients.running import Running, printed_by
from tests.server.backends.makers import onnx_doubling

joblib = pytest.importorskip("joblib", reason="needs joblib, of the extra dev-all, to write a model")
sklearn_linear = pytest.importorskip(
    "sklearn.linear_model", reason="needs scikit-learn, of the extra dev-all, to write one"
)

EXPORTED = Path(__file__).parent / "torch_files/exported.pt2"
FLAG = "--allow-pickled-models"
TIMEOUT_S = 60


@pytest.fixture
def pickle(tmp_path: Path) -> str:
    path = tmp_path / "model.joblib"
    joblib.dump(sklearn_linear.LogisticRegression().fit([[0.0], [1.0]], [0, 1]), path)
    return str(path)


def test_a_pickle_that_may_be_loaded_has_its_libraries_imported(pickle: str) -> None:
    wait_for_import([pickle, FLAG, "--port=0"], "sklearn")


def test_an_exported_program_has_torch_imported() -> None:
    wait_for_import([str(EXPORTED)], "libtorch")


def test_code_has_the_large_libraries_imported_that_it_imports_first(tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text("import json\nimport torch\n")
    wait_for_import([str(app)], "libtorch")
    # Variables that the libraries read in their import would come too late.
    app.write_text('import os\nos.environ["OMP_NUM_THREADS"] = "1"\nimport torch\n')
    with preloading([str(app)]) as fork_server:
        assert fork_server is None
    app.write_text("import json\ndef load():\n    import torch\n")
    with preloading([str(app)]) as fork_server:
        assert fork_server is None


def test_only_the_process_of_an_exported_program_has_torch(tmp_path: Path) -> None:
    with Running(tmp_path, str(EXPORTED)) as server:
        process = psutil.Process(server.process.pid)
        children = process.children(recursive=True)
        assert not has_library(process, "libtorch")
        assert any(has_library(child, "libtorch") for child in children)
        assert json.loads(printed_by(server.curl))


def has_library(process: psutil.Process, library: str) -> bool:
    return any(library in region.path for region in process.memory_maps())


def wait_for_import(arguments: Sequence[str], library: str) -> None:
    with preloading(arguments) as fork_server:
        assert fork_server is not None
        process = psutil.Process(fork_server.pid)
        deadline = time.monotonic() + TIMEOUT_S
        while not has_library(process, library):
            assert time.monotonic() < deadline, f"{library} is not imported"
            time.sleep(0.05)
    assert not process.is_running()


def test_other_models_start_no_process(pickle: str, tmp_path: Path) -> None:
    onnx_doubling(tmp_path / "plain", ["n", 3])
    for arguments in ([pickle], [str(tmp_path / "plain/1/model.onnx"), FLAG], [str(tmp_path), FLAG], ["\0", FLAG]):
        with preloading(arguments) as fork_server:
            assert fork_server is None
