"""The image, built from deploy/Dockerfile on a base of Debian's packages, and run as clusters run it."""

import json
import os
import platform
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tritonclient.http as triton
import yaml
from tools.kserve_runtimes import HTTP_PORT, RUNTIMES

from tests.operate.image.podman import ROOT, Podman, podman_or_skip
from tests.support.models import ECHO, tensor, write_config, write_python
from tests.support.ports import free_port

pytestmark = [
    pytest.mark.image,
    pytest.mark.skipif("CONCH_TEST_IMAGE" not in os.environ, reason="builds an image for minutes: make test-image"),
]

# As an OpenShift cluster with the restricted policy runs pods, and without any shell.
RESTRICTED = (
    "--read-only",
    "--cap-drop=all",
    "--security-opt=no-new-privileges",
    "--tmpfs=/tmp:mode=1777",
    "--volume=/dev/null:/usr/bin/dash:ro",
    "--volume=/dev/null:/usr/bin/bash:ro",
)
WAIT_S = 60
SLOW = f"""
print("the slow request began", flush=True)
time.sleep(2)
{ECHO}
"""

ASK_DIGITS = """
import json, urllib.request
image = {"name": "image", "shape": [1, 8, 8], "datatype": "FP32", "data": [0] * 64}
body = json.dumps({"inputs": [image]}).encode()
print(urllib.request.urlopen("http://127.0.0.1:8000/v2/models/digits/infer", body).read().decode())
"""


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Podman:
    return podman_or_skip(tmp_path_factory.mktemp("podman"))


@pytest.fixture(scope="module")
def image(podman: Podman) -> str:
    return podman.build("onnxruntime")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository that any uid can read: the demo's digits, and a slow Python model."""
    folder = tmp_path_factory.mktemp("models")
    number = f"input {tensor('INPUT0', 'FP32', 1)} output {tensor('OUTPUT0', 'FP32', 1)}"
    write_python(folder, "slow", number, SLOW)
    shutil.copytree(ROOT / "examples" / "models" / "digits", folder / "digits")
    folder.chmod(0o755)
    return folder


def until(condition: Callable[[], bool], what: Callable[[], str]) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, what()
        time.sleep(0.1)


@contextmanager
def serving(podman: Podman, image: str, models: Path) -> Iterator[SimpleNamespace]:
    """Run the image's own command with a random uid; yield once its health check succeeds."""
    http, grpc, metrics = (free_port() for _ in range(3))
    options = [
        *RESTRICTED,
        "--network=host",
        f"--user={random.randint(20000, 60000)}",
        f"--volume={models}:/models:ro",
        *(f"--env=CONCH_{name}_ADDRESS=127.0.0.1" for name in ("HTTP", "GRPC")),
        f"--env=CONCH_HTTP_PORT={http}",
        f"--env=CONCH_GRPC_PORT={grpc}",
        f"--env=CONCH_METRICS_PORT={metrics}",
    ]
    with podman.container(image, *options) as container:
        until(
            lambda: podman.run("healthcheck", "run", container, check=False).returncode == 0,
            lambda: podman.logs(container),
        )
        yield SimpleNamespace(id=container, http=f"127.0.0.1:{http}", metrics=metrics)


def test_the_demo_request_is_answered_under_a_random_uid_and_sigterm_drains(
    podman: Podman, image: str, models: Path
) -> None:
    with serving(podman, image, models) as server, closing(triton.InferenceServerClient(server.http)) as client:
        picture = triton.InferInput("image", [1, 8, 8], "FP32")
        picture.set_data_from_numpy(np.zeros((1, 8, 8), np.float32))
        assert client.infer("digits", [picture]).as_numpy("probabilities").shape == (1, 10)

        code = "import os; print(os.getuid(), os.getgid(), open('/proc/1/cmdline').read().rstrip(chr(0)))"
        uid, group, init = podman.run("exec", server.id, "python", "-c", code).stdout.strip().split(" ", 2)
        assert (int(uid) >= 20000, group, init) == (True, "0", "conch: init")

        answers: list[np.ndarray] = []
        thread = threading.Thread(target=lambda: answers.append(ask_slowly(server.http)))
        thread.start()
        until(lambda: "the slow request began" in podman.logs(server.id), lambda: podman.logs(server.id))
        podman.run("stop", "--time=60", server.id)
        thread.join(WAIT_S)
        assert [list(answer) for answer in answers] == [[3]]
        assert podman.inspect("container", server.id)["State"]["ExitCode"] == 0


def ask_slowly(address: str) -> np.ndarray:
    with closing(triton.InferenceServerClient(address)) as client:
        number = triton.InferInput("INPUT0", [1], "FP32")
        number.set_data_from_numpy(np.array([3], np.float32))
        return client.infer("slow", [number]).as_numpy("OUTPUT0")


def test_its_configuration_is_what_the_page_says(podman: Podman, image: str) -> None:
    document = podman.inspect("image", image)
    config = document["Config"]
    assert (config["User"], config["Entrypoint"], config["Cmd"]) == ("10001:0", ["conch"], ["serve"])
    assert set(config["ExposedPorts"]) == {"8000/tcp", "8001/tcp", "8002/tcp"}
    assert set(config["Volumes"]) == {"/tmp", "/cache"}
    assert document["Healthcheck"]["Test"] == ["CMD", "conch", "health"]
    assert config["StopSignal"] in ("SIGTERM", "15")
    assert config["Labels"]["org.opencontainers.image.title"] == "Conch"


@pytest.mark.parametrize(
    "command",
    [
        ("{image}", "tritonserver"),  # `args` of a pod
        ("--entrypoint=tritonserver", "{image}"),  # `command` of a pod
        ("--entrypoint=/opt/tritonserver/bin/tritonserver", "{image}"),
    ],
)
def test_manifests_for_triton_start_it(podman: Podman, image: str, models: Path, command: tuple[str, ...]) -> None:
    arguments = [argument.format(image=image) for argument in command]
    container = podman.run("run", "--detach", f"--volume={models}:/m:ro", *arguments, "--model-store=/m").stdout.strip()
    try:
        until(
            lambda: podman.run("exec", container, "conch", "health", check=False).returncode == 0,
            lambda: podman.logs(container),
        )
    finally:
        podman.run("rm", "--force", "--time=60", container)


def test_it_holds_what_the_server_needs_and_the_sbom_names_it(podman: Podman, image: str) -> None:
    code = """
import importlib.metadata, json, pathlib
names = sorted(f"{package.name} {package.version}" for package in importlib.metadata.distributions())
files = [str(path) for path in pathlib.Path("/opt/conch").rglob("*")]
stale = [path for path in files if path.endswith(".py") and "site-packages" in path
         and not list(pathlib.Path(path).parent.glob(f"__pycache__/{pathlib.Path(path).stem}.*.pyc"))]
print(json.dumps([names, files, stale, json.load(open("/opt/conch/sbom.cdx.json"))]))
"""
    options = ("--rm", "--network=none", "--user=12345", "--entrypoint=python")
    output = podman.run("run", *options, image, "-c", code).stdout
    installed, files, uncompiled, sbom = json.loads(output)
    assert {package.split()[0] for package in installed} >= {
        "conch-server",
        "onnxruntime",
        "numpy",
        "obstore",
        "PyYAML",
    }
    assert not {package.split()[0] for package in installed} & {"pip", "setuptools", "torch", "pytest"}
    assert [path for path in files if path.endswith((".pyi", ".h", ".a")) or "/tests/" in path] == []
    assert uncompiled == []
    assert sbom["bomFormat"] == "CycloneDX"
    assert sorted(f"{component['name']} {component['version']}" for component in sbom["components"]) == installed


def test_podman_plays_the_deployment_that_the_chart_renders(
    podman: Podman, image: str, models: Path, tmp_path: Path
) -> None:
    """With its security context, volumes and environment. podman makes health checks of probes only under systemd."""
    name, _, tag = image.rpartition(":")
    release = f"image-test-{os.getpid()}"
    values = {
        "image": {"repository": name, "tag": tag, "pullPolicy": "Never"},
        "modelRepository": {"volume": {"hostPath": {"path": str(models)}}},
    }
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    command = [sys.executable, "-m", "conch", "k8s", "render", release, f"--values={tmp_path / 'values.yaml'}"]
    rendered = subprocess.run(command, capture_output=True, check=True).stdout
    (deployment,) = (document for document in yaml.safe_load_all(rendered) if document["kind"] == "Deployment")
    (tmp_path / "deployment.yaml").write_text(yaml.safe_dump(deployment))
    container = f"{release}-pod-0-server"
    podman.run("play", "kube", str(tmp_path / "deployment.yaml"))
    try:
        until(
            lambda: podman.run("exec", container, "conch", "health", check=False).returncode == 0,
            lambda: podman.logs(container),
        )
        answer = podman.run("exec", container, "python", "-c", ASK_DIGITS).stdout
        assert len(json.loads(answer)["outputs"][0]["data"]) == 10
        described = podman.inspect("container", container)
        assert described["HostConfig"]["ReadonlyRootfs"]
        assert {mount["Destination"] for mount in described["Mounts"]} >= {"/models", "/tmp", "/cache", "/dev/shm"}
        podman.run("pod", "stop", "--time=60", f"{release}-pod-0")
        assert podman.inspect("container", container)["State"]["ExitCode"] == 0
    finally:
        podman.run("play", "kube", "--down", str(tmp_path / "deployment.yaml"))
        for volume in podman.run("volume", "ls", "--quiet").stdout.split():
            podman.run("volume", "rm", "--force", volume)  # of this test's own storage


def test_podman_plays_the_pod_of_the_kserve_runtime(podman: Podman, image: str, models: Path, tmp_path: Path) -> None:
    """With a folder of only model.onnx, as KServe's storage initializer leaves it."""
    release = f"kserve-test-{os.getpid()}"
    (tmp_path / "mounted").mkdir()
    shutil.copy(models / "digits" / "1" / "model.onnx", tmp_path / "mounted")
    runtime = RUNTIMES[0].runtime("0")
    (server,) = runtime["spec"]["containers"]
    server |= {"image": image, "imagePullPolicy": "Never"}
    server["args"] = [word.replace("{{.Name}}", "digits") for word in server["args"]]
    server["volumeMounts"].append({"name": "models", "mountPath": "/mnt/models", "readOnly": True})
    volumes = [*runtime["spec"]["volumes"], {"name": "models", "hostPath": {"path": str(tmp_path / "mounted")}}]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": release}}
    (tmp_path / "pod.yaml").write_text(
        yaml.safe_dump({**pod, "spec": {"containers": [server], "volumes": volumes, "restartPolicy": "Never"}})
    )
    container = f"{release}-kserve-container"
    podman.run("play", "kube", str(tmp_path / "pod.yaml"))
    try:
        port = f"CONCH_HTTP_PORT={HTTP_PORT}"
        until(
            lambda: podman.run("exec", f"--env={port}", container, "conch", "health", check=False).returncode == 0,
            lambda: podman.logs(container),
        )
        asked = ASK_DIGITS.replace("8000", str(HTTP_PORT))
        answer = json.loads(podman.run("exec", container, "python", "-c", asked).stdout)
        assert (answer["model_name"], len(answer["outputs"][0]["data"])) == ("digits", 10)
        assert podman.inspect("container", container)["HostConfig"]["ReadonlyRootfs"]
        podman.run("pod", "stop", "--time=60", release)
        assert podman.inspect("container", container)["State"]["ExitCode"] == 0
    finally:
        podman.run("play", "kube", "--down", str(tmp_path / "pod.yaml"))
        for volume in podman.run("volume", "ls", "--quiet").stdout.split():
            podman.run("volume", "rm", "--force", volume)  # of this test's own storage


def test_a_missing_extra_is_named(podman: Podman, image: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    write_config(tmp_path, "other", 'backend: "openvino"')
    log = finished(podman, image, tmp_path)
    assert "pip install 'conch-server[openvino]'" in log


def finished(podman: Podman, image: str, models: Path) -> str:
    """Return the log of a server that cannot start."""
    with podman.container(image, "--network=none", f"--volume={models}:/models:ro") as container:
        assert podman.run("wait", container).stdout.strip() == "1"
        return podman.logs(container)


def test_a_folder_of_models_that_is_missing_or_empty_is_named(podman: Podman, image: str) -> None:
    with podman.container(image, "--network=none", "--env=CONCH_MODEL_REPOSITORY=/nothing") as container:
        assert podman.run("wait", container).stdout.strip() != "0"
        assert "/nothing" in podman.logs(container)


def test_the_image_is_recorded_for_this_architecture_and_not_run_as_another(podman: Podman, image: str) -> None:
    ours = podman.inspect("image", image)["Architecture"]
    assert ours == {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    other = "arm64" if ours == "amd64" else "amd64"
    assert podman.run("run", "--rm", "--pull=never", f"--platform=linux/{other}", image, check=False).returncode


def test_an_unknown_flavour_is_refused_with_those_that_exist(podman: Podman) -> None:
    with pytest.raises(AssertionError, match="must be base, onnxruntime, openvino, genai or cuda"):
        podman.build("unknown", FLAVOUR="gpu")
