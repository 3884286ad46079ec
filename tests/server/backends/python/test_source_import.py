"""A model that is loaded again has the code that its files have now, however soon after the last load they changed."""

import os
import py_compile
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton

from conch.server.backends.child import conch_child
from tests.support.models import tensor, write_python
from tests.support.server_process import ConchProcess

CONFIG = f"input {tensor('X', 'INT32', 1)} output {tensor('Y', 'INT32', 3)}"
SECOND_NS = 1_700_000_000 * 10**9


def write_release(models: Path, release: int) -> None:
    """Write a model whose files have the same size and the same second of modification in each release."""
    body = f"""
    import neighbour, package.inner
    values = np.array([{release}, neighbour.VALUE, package.inner.VALUE], np.int32)
    return pb_utils.InferenceResponse([pb_utils.Tensor("Y", values)])
    """
    write_python(models, "m", CONFIG, body)
    folder = models / "m" / "1"
    (folder / "package").mkdir(exist_ok=True)
    for path in (folder / "neighbour.py", folder / "package" / "inner.py"):
        path.write_text(f"VALUE = {release}")
    for path in folder.rglob("*.py"):
        os.utime(path, ns=(SECOND_NS + release, SECOND_NS + release))


def test_a_change_within_a_second_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    models = tmp_path / "models"
    number = triton.InferInput("X", [1], "INT32")
    number.set_data_from_numpy(np.zeros(1, np.int32))
    write_release(models, 1)
    flags = ["--model-control-mode=explicit", "--load-model=m"]
    with (
        ConchProcess(models, *flags, log=tmp_path / "log") as server,
        triton.InferenceServerClient(server.http) as client,
    ):
        for release in (1, 2):
            write_release(models, release)
            client.load_model("m")
            assert client.infer("m", [number]).as_numpy("Y").tolist() == [release] * 3
    assert list(models.rglob("*.pyc")) == []


@pytest.mark.parametrize("library", ["env/lib/python3", "packages/site-packages"])
def test_environments_and_models_without_sources_are_imported_as_ever(library: str, tmp_path: Path) -> None:
    """Environments inside a model's folder keep their bytecode, which takes long to make."""
    folder = tmp_path / library
    folder.mkdir(parents=True)
    (tmp_path / "source.py").write_text("VALUE = 1")
    (folder / "library.py").write_text("VALUE = 1")
    py_compile.compile(str(tmp_path / "source.py"), str(tmp_path / "hidden.pyc"))
    program = (
        "import sys; from conch_child.python.source_import import add_source_folder; add_source_folder(sys.argv[1])\n"
        "sys.prefix = f'{sys.argv[1]}/env'\n"
        "sys.path += sys.argv[1:]; import hidden, library, source"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(next(iter(conch_child.__path__))).parent)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    subprocess.run([sys.executable, "-c", program, str(tmp_path), str(folder)], env=environment, check=True)
    assert [path.parents[1] for path in tmp_path.glob("**/__pycache__/*.pyc")] == [folder]
