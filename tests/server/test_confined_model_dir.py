"""Models of `--model-dir` in confined processes: a pickle can run any code, so it is what to confine."""

import pickle
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as http
from sklearn.linear_model import LinearRegression

from conch.server.backends.child.conch_child.ipc.sandbox import landlock_abi
from tests.support.server_process import ConchProcess

pytestmark = pytest.mark.skipif(not landlock_abi(), reason="the kernel has no Landlock")


class Escape:
    """Runs a command when it is unpickled, and is a model all the same."""

    def __init__(self, model: LinearRegression, command: str) -> None:
        self.model, self.command = model, command

    def __reduce__(self) -> object:
        code = (
            f"[__import__('os').system({self.command!r}), __import__('pickle').loads({pickle.dumps(self.model)!r})][1]"
        )
        return eval, (code,)


@pytest.mark.slow
@pytest.mark.parametrize("linked", [False, True])
def test_a_hostile_pickle_is_confined_and_serves(tmp_path: Path, linked: bool) -> None:
    model = LinearRegression().fit([[0, 1], [1, 2]], [1, 2])
    secret, stolen = tmp_path / "secret", tmp_path / "stolen"
    secret.write_text("secret")
    secret.chmod(0o600)
    command = f"cat {secret} > {stolen}; chmod 666 {secret}; touch -d @1 {secret}"
    folder = tmp_path / "mnt"
    folder.mkdir()
    if linked:  # as KServe's modelcar mounts it
        (tmp_path / "elsewhere").mkdir()
        (folder / "models").symlink_to(tmp_path / "elsewhere")
        folder = folder / "models"
    (folder / "model.joblib").write_bytes(pickle.dumps(Escape(model, command)))
    flags = [f"--model-dir={folder}", "--model-name=m", "--allow-pickled-models=true"]
    flags.append("--backend-config=python,landlock=true")
    (tmp_path / "empty").mkdir()
    with ConchProcess(tmp_path / "empty", *flags, log=tmp_path / "log") as server:
        client = http.InferenceServerClient(server.http)
        given = http.InferInput("input-0", [1, 2], "FP32")
        given.set_data_from_numpy(np.array([[1, 2]], np.float32))
        predicted = client.infer("m", [given]).as_numpy("predict")
        assert predicted.ravel().tolist() == pytest.approx([2.0])
        assert urllib.request.urlopen(f"http://{server.http}/v2/health/ready", timeout=60).status == 200
    assert not stolen.exists()
    assert (secret.stat().st_mode & 0o777, secret.stat().st_mtime > 1) == (0o600, True)


@pytest.mark.parametrize(
    "name", ["model.joblib", "MODEL.PKL", "m.pickle", "model.bst", "model.onnx", "model.pt", "model.json"]
)
def test_without_the_flag_no_pickle_is_loaded(tmp_path: Path, name: str) -> None:
    """Whatever its name says: no reader of the server falls back to unpickling."""
    marker = tmp_path / "ran"
    folder = tmp_path / "models"
    folder.mkdir()
    model = LinearRegression().fit([[0, 1], [1, 2]], [1, 2])
    (folder / name).write_bytes(pickle.dumps(Escape(model, f"touch {marker}"), protocol=2))
    (tmp_path / "empty").mkdir()
    flags = [f"--model-dir={folder}", "--model-name=m", "--exit-on-error=false"]
    with ConchProcess(tmp_path / "empty", *flags, log=tmp_path / "log", wait="live"):
        pass
    assert not marker.exists()
    assert "failed to load" in (tmp_path / "log").read_text() or "pickle" in (tmp_path / "log").read_text()
