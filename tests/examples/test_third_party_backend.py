"""The example of a backend in a separate package: really installed, into a folder, and served."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as httpclient

from tests.support.server_process import ConchProcess

EXAMPLE = Path(__file__).parents[2] / "examples" / "third_party_backend"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package in a folder that the server's interpreter looks into."""
    target = tmp_path / "site-packages"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    subprocess.run([*command, "--target", str(target), str(EXAMPLE)], check=True, env=environment)
    monkeypatch.setenv("PYTHONPATH", str(target))
    return target


def test_an_installed_package_brings_a_backend(tmp_path: Path, installed: Path) -> None:
    assert installed.is_dir()
    with ConchProcess(EXAMPLE / "models", log=tmp_path / "log") as server:
        client = httpclient.InferenceServerClient(server.http)
        assert client.get_model_config("parabola")["max_batch_size"] == 64
        given = httpclient.InferInput("X", [2, 2], "FP32")
        given.set_data_from_numpy(np.array([[0, 1], [2, -4]], np.float32))
        answer = client.infer("parabola", [given]).as_numpy("Y")
        client.close()
    assert answer.tolist() == [[1, 1.5], [3, 9]]
