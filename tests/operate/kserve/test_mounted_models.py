"""What KServe mounts is served: the runtimes' arguments, environment and probes, on a read-only folder."""

import json
import shutil
import signal
import urllib.request
from pathlib import Path

import joblib
import numpy as np
import openai
import pytest
import tritonclient.grpc
import tritonclient.http
import yaml
from sklearn.linear_model import LogisticRegression
from tools.deploy_files import ROOT
from tools.kserve_runtimes import RUNTIMES
from tritonclient.utils import InferenceServerException

from tests.operate.kserve.pod import Pod
from tests.server.backends.engines.gguf_model import write_gguf
from tests.server.backends.onnxruntime.onnx_models import FP32, write_identity
from tests.server.test_repo_add import write_weighted

CONCH = next(runtime for runtime in RUNTIMES if runtime.name == "conch")
TREES = next(runtime for runtime in RUNTIMES if runtime.name == "conch-trees")
REST, GRPC = CONCH.runtime("1"), CONCH.runtime("1", grpc=True)


@pytest.fixture
def onnx(tmp_path: Path) -> Path:
    """A folder with only model.onnx."""
    folder = tmp_path / "models"
    folder.mkdir()
    shutil.move(write_identity(tmp_path / "made", FP32, ["n", 4]) / "1" / "model.onnx", folder)
    return folder


def test_a_model_over_http_and_grpc(onnx: Path, tmp_path: Path) -> None:
    rows = np.arange(8, dtype=np.float32).reshape(2, 4)
    with Pod(GRPC, "densenet", onnx, tmp_path / "pod") as pod:
        with tritonclient.http.InferenceServerClient(pod.http) as client:
            assert client.is_model_ready("densenet")
            # Documents, which KServe's client parses; without --model-dir there are none, as in Triton.
            for path in ("live", "ready"):
                with urllib.request.urlopen(f"http://{pod.http}/v2/health/{path}", timeout=30) as reply:
                    assert json.load(reply) == {path: True}
            (name,) = (tensor["name"] for tensor in client.get_model_metadata("densenet")["inputs"])
            given = tritonclient.http.InferInput(name, rows.shape, "FP32")
            given.set_data_from_numpy(rows)
            answer = client.infer("densenet", [given])
            output = client.get_model_metadata("densenet")["outputs"][0]["name"]
            assert np.array_equal(answer.as_numpy(output), rows)
            with pytest.raises(InferenceServerException, match="'other' is not found"):
                client.infer("other", [given])
        with tritonclient.grpc.InferenceServerClient(pod.grpc) as grpc_client:
            over_grpc = tritonclient.grpc.InferInput(name, rows.shape, "FP32")
            over_grpc.set_data_from_numpy(rows)
            assert np.array_equal(grpc_client.infer("densenet", [over_grpc]).as_numpy(output), rows)
        assert [path.name for path in onnx.iterdir()] == ["model.onnx"]
        # Ended while a connection is open: it drains, is not ready, and ends with status 0.
        pod.process.send_signal(signal.SIGTERM)
        assert pod.process.wait(60) == 0
        assert not pod.probe("readiness")
    assert not list((tmp_path / "pod" / "tmp").glob("conch-model-uploads.*")), "links remain"


def test_a_modelcar_that_comes_late_and_a_pickle_that_is_trusted(tmp_path: Path) -> None:
    """One server for both: the link of a modelcar appears after the start, with model.joblib behind it."""
    image = tmp_path / "image"
    image.mkdir()
    rows = np.array([[0, 0], [1, 1], [0, 1], [1, 0]], dtype=np.float32)
    labels = np.array(["no", "yes", "no", "yes"])
    joblib.dump(LogisticRegression().fit(rows, labels), image / "model.joblib")
    service = yaml.safe_load((ROOT / "deploy" / "kserve" / "services" / "iris-sklearn.yaml").read_text())
    pod = Pod(
        TREES.runtime("1"),
        "iris",
        tmp_path / "models",
        tmp_path / "pod",
        arguments=service["spec"]["predictor"]["model"]["args"],
    )
    pod.start()
    try:
        pod.until("liveness")
        assert not pod.probe("readiness")
        image.chmod(0o555)
        # KServe's link leads through the file system of another process.
        (tmp_path / "models").symlink_to(f"/proc/self/root{image}")
        pod.until("readiness")
        with tritonclient.http.InferenceServerClient(pod.http) as client:
            given = tritonclient.http.InferInput("input-0", [4, 2], "FP32")
            given.set_data_from_numpy(rows)
            calls = [client.async_infer("iris", [given]) for _ in range(4)]  # batched together
            for answer in [call.get_result() for call in calls]:
                assert answer.as_numpy("predict").ravel().tolist() == [b"no", b"yes", b"no", b"yes"]
                assert answer.as_numpy("predict_proba").shape == (4, 2)
        assert pod.stop() == 0
    finally:
        if pod.process.poll() is None:
            pod.stop(signal.SIGKILL)
        image.chmod(0o755)


def test_weights_in_a_file_beside_the_model(tmp_path: Path) -> None:
    """Behind the link of a modelcar, where onnxruntime checks that the file is not elsewhere."""
    (tmp_path / "image").mkdir()
    write_weighted(tmp_path / "image" / "net.onnx")
    (tmp_path / "models").symlink_to(f"/proc/self/root{tmp_path}/image")
    with (
        Pod(REST, "net", tmp_path / "models", tmp_path / "pod") as pod,
        tritonclient.http.InferenceServerClient(pod.http) as client,
    ):
        rows = tritonclient.http.InferInput("IN", [1, 400], "FP32")
        rows.set_data_from_numpy(np.zeros((1, 400), np.float32))
        assert np.array_equal(client.infer("net", [rows]).as_numpy("OUT")[0], np.arange(400))


def test_openvino_ir(onnx: Path, tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino")
    (tmp_path / "ir").mkdir()
    openvino.save_model(openvino.convert_model(onnx / "model.onnx"), tmp_path / "ir" / "net.xml")
    runtime = next(runtime for runtime in RUNTIMES if runtime.name == "conch-openvino").runtime("1")
    with (
        Pod(runtime, "net", tmp_path / "ir", tmp_path / "pod") as pod,
        tritonclient.http.InferenceServerClient(pod.http) as client,
    ):
        (given,) = client.get_model_metadata("net")["inputs"]
        rows = tritonclient.http.InferInput(given["name"], [2, 4], "FP32")
        rows.set_data_from_numpy(np.ones((2, 4), np.float32))
        assert client.infer("net", [rows]).get_response()["outputs"][0]["shape"] == [2, 4]


def test_a_repository_keeps_its_names(tmp_path: Path) -> None:
    write_identity(tmp_path / "models" / "a", FP32, ["n", 4])
    write_identity(tmp_path / "models" / "b", FP32, ["n", 4])
    with (
        Pod(REST, "pipeline", tmp_path / "models", tmp_path / "pod") as pod,
        tritonclient.http.InferenceServerClient(pod.http) as client,
    ):
        assert (client.is_model_ready("a"), client.is_model_ready("b")) == (True, True)
        assert not client.is_model_ready("pipeline")
        assert sorted(entry["name"] for entry in client.get_model_repository_index()) == ["a", "b"]


@pytest.mark.slow
def test_a_language_model_below_the_prefix_of_kserve(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    write_gguf(tmp_path / "models" / "a-q4.gguf")
    write_gguf(tmp_path / "models" / "a-q8.gguf")
    runtime = next(runtime for runtime in RUNTIMES if runtime.name == "conch-genai").runtime("1")
    chosen = ["--model-dir=/mnt/models/a-q8.gguf"]
    with (
        Pod(runtime, "chat", tmp_path / "models", tmp_path / "pod", arguments=chosen) as pod,
        openai.OpenAI(base_url=f"http://{pod.http}/openai/v1", api_key="none", max_retries=0) as client,
    ):
        assert [model.id for model in client.models.list()] == ["chat"]
        answer = client.completions.create(model="chat", prompt="a b", max_tokens=4)
        assert answer.usage is not None
        assert answer.usage.completion_tokens > 0


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({"model.joblib": b"\x80\x04N."}, "is a pickle, which is not loaded because it can run any code"),
        ({"weights.h5": b"x"}, "contains no model: expected"),
    ],
)
def test_what_cannot_be_served_ends_the_container(files: dict[str, bytes], complaint: str, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    for name, contents in files.items():
        (tmp_path / "models" / name).write_bytes(contents)
    pod = Pod(REST, "m", tmp_path / "models", tmp_path / "pod")
    pod.start()
    assert pod.process.wait(60) == 1
    assert complaint in pod.text


def test_a_name_that_is_a_path_is_refused(onnx: Path, tmp_path: Path) -> None:
    pod = Pod(REST, "../other", onnx, tmp_path / "pod")
    pod.start()
    assert pod.process.wait(60) == 1
    assert "model name '../other' is not a valid folder name" in pod.text
