"""KServe's own Python packages: classes read our objects, clients call our server, which serves what is fetched."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http
from moto.server import ThreadedMotoServer
from tools.deploy_files import ROOT
from tools.kserve_runtimes import RUNTIMES

from conch.server.repository.model_dir import ModelDirRoot
from conch.server.repository.store import Repository
from tests.operate.kserve.environment import PYTHON, needs_kserve, run
from tests.operate.kserve.pod import Pod
from tests.server.backends.onnxruntime.onnx_models import FP32, write_identity
from tests.server.remote.peers import S3

HERE = Path(__file__).parent
FILES = sorted((ROOT / "deploy" / "kserve").rglob("*.yaml"))
BUILT = {runtime.name: runtime for runtime in RUNTIMES}

pytestmark = list(needs_kserve)


def test_the_objects_are_those_of_kserve() -> None:
    built = run(HERE / "kserve_models.py", *FILES).splitlines()
    assert len(built) == sum(path.read_text().count("\nkind: ") for path in FILES)
    assert {line.split()[0] for line in built} == {"ClusterServingRuntime", "ServingRuntime", "InferenceService"}


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("storageUri", "storageURI", "spec.predictor.model: V1beta1ModelSpec has no field 'storageURI'"),
        ("maxReplicas: 4", "maxReplicas: four", "spec.predictor.maxReplicas: expected int, got 'four'"),
        ("\nspec:", "\nspecification:", "has no field 'specification'"),
    ],
)
def test_wrong_objects_are_found(old: str, new: str, complaint: str, tmp_path: Path) -> None:
    text = (ROOT / "deploy" / "kserve" / "services" / "densenet.yaml").read_text()
    assert old in text
    (tmp_path / "wrong.yaml").write_text(text.replace(old, new))
    assert PYTHON is not None
    command: list[Any] = [PYTHON, HERE / "kserve_models.py", tmp_path / "wrong.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert complaint in done.stderr


def called(pod: Pod, *names: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(run(HERE / "kserve_client.py", f"http://{pod.http}", pod.grpc, *names))
    return answer


def test_the_clients_call_an_onnx_model(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    shutil.move(write_identity(tmp_path / "made", FP32, ["n", 4]) / "1" / "model.onnx", tmp_path / "models")
    with Pod(BUILT["conch"].runtime("1"), "densenet", tmp_path / "models", tmp_path / "pod") as pod:
        answer = called(pod, "densenet", "IN", "OUT", "2,4")
    assert np.allclose(answer["values"], answer["rows"])


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    """A bucket, for which the environment has address and keys."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    endpoint = "http://{}:{}".format(*server.get_host_and_port())
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    yield S3(endpoint, "models")
    server.stop()


def test_what_the_storage_initializer_fetches_is_served(s3: S3, tmp_path: Path) -> None:
    """A prefix with one file, one file by its name, a repository, and an archive on the local disk."""
    onnx = write_identity(tmp_path / "made", FP32, ["n", 4]) / "1" / "model.onnx"
    config = 'backend: "identity"\n' + "".join(
        f'{kind} {{ name: "{name}" data_type: TYPE_FP32 dims: 4 }}\n'
        for kind, name in (("input", "I"), ("output", "O"))
    )
    s3.put("densenet/model.onnx", onnx.read_bytes())
    s3.put("repository/a/config.pbtxt", config)
    s3.put("repository/a/1/model.txt", "x")  # empty files are not fetched
    s3.put("repository/b/1/model.onnx", onnx.read_bytes())
    archive = shutil.make_archive(str(tmp_path / "packed"), "gztar", tmp_path / "made" / "1")
    uris = ("s3://models/densenet", "s3://models/densenet/model.onnx", "s3://models/repository", f"file://{archive}")
    folders = [tmp_path / f"mnt{number}" for number in range(len(uris))]
    run(HERE / "storage_initializer.py", *(word for pair in zip(uris, folders, strict=True) for word in pair))
    assert [sorted(ModelDirRoot(folder, "m").names()) for folder in folders] == [["m"], ["m"], ["a", "b"], ["m"]]
    for folder in (folders[0], folders[1], folders[3]):
        repository = Repository([ModelDirRoot(folder, "m")])
        assert repository.read("m").config.backend == "onnxruntime"
    with (
        Pod(BUILT["conch"].runtime("1"), "pipeline", folders[2], tmp_path / "pod") as pod,
        tritonclient.http.InferenceServerClient(pod.http) as client,
    ):
        assert (client.is_model_ready("a"), client.is_model_ready("b")) == (True, True)


def test_the_clients_call_a_forest_in_a_file_called_bst(tmp_path: Path) -> None:
    xgboost = pytest.importorskip("xgboost")
    (tmp_path / "models").mkdir()
    random = np.random.default_rng(1)
    data = xgboost.DMatrix(random.random((60, 4)), random.integers(0, 3, 60))
    booster = xgboost.train({"objective": "multi:softprob", "num_class": 3}, data, 3)
    booster.save_model(tmp_path / "forest.ubj")
    shutil.move(tmp_path / "forest.ubj", tmp_path / "models" / "model.bst")
    with Pod(BUILT["conch-trees"].runtime("1", grpc=True), "iris", tmp_path / "models", tmp_path / "pod") as pod:
        answer = called(pod, "iris", "input__0", "output__0", "64,4")
    expected = booster.predict(xgboost.DMatrix(np.array(answer["rows"], np.float32)))
    assert np.allclose(answer["values"], expected, atol=1e-5)
