"""A server process from its start to its end: exit statuses, readiness, draining, dead children, changed folders."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import venv
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.processes import command_lines
from tests.support.models import ECHO, tensor, write_config, write_identity, write_python
from tests.support.server_process import ConchProcess

ONE_INT = f"input {tensor('INPUT0', 'INT32', 1)} output {tensor('OUTPUT0', 'INT32', 1)}"


def ask(conch: ConchProcess, model: str, value: int) -> int:
    """Send one integer and return the one that comes back."""
    with triton.InferenceServerClient(conch.http, network_timeout=30) as client:
        given = triton.InferInput("INPUT0", [1], "INT32")
        given.set_data_from_numpy(np.array([value], np.int32))
        return int(client.infer(model, [given]).as_numpy("OUTPUT0")[0])


def children(conch: ConchProcess) -> list[psutil.Process]:
    return psutil.Process(conch.process.pid).children(recursive=True)


def conch(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "conch", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )


def test_an_unknown_flag_suggests_the_nearest(tmp_path: Path) -> None:
    result = conch("serve", f"--model-repository={tmp_path}", "--htpp-port=1")
    assert result.returncode == 2
    assert "--http-port" in result.stderr


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        flags = ["--http-address=127.0.0.1", "--allow-grpc=false", "--allow-metrics=false"]
        result = conch("serve", f"--model-repository={tmp_path}", f"--http-port={port}", *flags)
    assert result.returncode == 1
    assert str(port) in result.stderr


def test_a_repository_that_is_not_there(tmp_path: Path) -> None:
    result = conch("serve", f"--model-repository={tmp_path / 'nowhere'}")
    assert result.returncode == 2
    assert "nowhere" in result.stderr


def test_a_relative_repository_serves_models_with_their_own_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parameter = 'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "$$TRITON_MODEL_DIRECTORY/env" } }'
    write_python(tmp_path / "models", "m", f"{ONE_INT} {parameter}", ECHO)
    environment = tmp_path / "models" / "m" / "env"
    venv.create(environment, symlinks=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "ours.pth").write_text(str(Path(np.__file__).parents[1]))
    monkeypatch.chdir(tmp_path)
    with ConchProcess(Path("models"), log=tmp_path / "log") as server:
        assert ask(server, "m", 7) == 7


def test_a_broken_model_ends_the_start_unless_a_flag_allows_it(tmp_path: Path) -> None:
    write_identity(tmp_path / "models", "good", "INT32", 1)
    write_config(tmp_path / "models", "bad", "max_batchsize: 3")
    flags = [f"--{name}-port=0" for name in ("http", "grpc", "metrics")]
    result = conch("serve", f"--model-repository={tmp_path / 'models'}", *flags)
    assert result.returncode == 1
    assert "max_batch_size" in result.stderr
    with ConchProcess(tmp_path / "models", "--exit-on-error=false", log=tmp_path / "log", wait="live") as server:
        server.until("/v2/models/good/ready")
        assert ask(server, "good", 7) == 7
        server.until("/v2/health/ready")  # the configuration is not valid, as in Triton
        server.until_logged(r"\| bad +\| 1 +\| UNAVAILABLE")


def test_a_model_file_that_is_not_there_is_named_at_once(tmp_path: Path) -> None:
    write_python(tmp_path / "models", "m", f'{ONE_INT} default_model_filename: "other.py"', ECHO)
    write_identity(tmp_path / "models", "good", "INT32", 1)
    flags = ["--model-control-mode=explicit", "--load-model=good"]
    with ConchProcess(tmp_path / "models", *flags, log=tmp_path / "log") as server:
        with triton.InferenceServerClient(server.http) as client, pytest.raises(InferenceServerException) as caught:
            client.load_model("m")
        assert "other.py" in str(caught.value)
        assert ask(server, "good", 3) == 3


def test_flags_may_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_identity(tmp_path / "models", "m", "INT32", 1)
    monkeypatch.setenv("CONCH_ALLOW_GRPC", "false")
    monkeypatch.setenv("CONCH_ID", "shell")
    with ConchProcess(tmp_path / "models", "--allow-grpc=false", log=tmp_path / "log") as server:
        response = urllib.request.urlopen(f"http://{server.http}/v2", timeout=60)
        assert json.load(response)["name"] == "shell"
        response.close()


@pytest.mark.parametrize(
    "command", [(Path(sys.executable).parent / "tritonserver",), (sys.executable, "-m", "conch", "tritonserver")]
)
def test_the_command_of_triton_is_serve(tmp_path: Path, command: tuple[str, ...]) -> None:
    models = tmp_path / "models"
    models.mkdir()
    write_identity(tmp_path / "store", "echo", "FP32", 1)
    # Those of KServe's runtime for Triton.
    flags = [f"--model-store={tmp_path / 'store'}", "--allow-grpc=true", "--allow-http=true"]
    with ConchProcess(models, *flags, log=tmp_path / "log", command=command) as server:
        assert triton.InferenceServerClient(server.http).is_model_ready("echo")


def test_requests_in_flight_are_answered_after_sigterm(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    slow = f"while not os.path.exists({str(gate)!r}): time.sleep(0.01)\n" + ECHO
    write_python(tmp_path / "models", "m", ONE_INT, slow)
    with ConchProcess(tmp_path / "models", log=tmp_path / "log") as server, ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(ask, server, "m", i) for i in range(2)]
        wait_for_metric(server, "nv_inference_pending_request_count", 1)
        server.process.send_signal(signal.SIGTERM)
        server.until_logged("Waiting for in-flight requests to complete")
        gate.touch()
        assert server.process.wait(60) == 0
        assert [answer.result() for answer in answers] == [0, 1]


def wait_for_metric(server: ConchProcess, name: str, value: float) -> None:
    """Return when a metric of one model has the value."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for line in server.metrics().splitlines():
            if line.startswith(name + "{") and float(line.rsplit(" ", 1)[1]) == value:
                return
        time.sleep(0.01)
    raise AssertionError(f"{name} never was {value}")


def test_no_child_outlives_a_server_that_is_killed(tmp_path: Path) -> None:
    write_python(tmp_path / "models", "m", ONE_INT, ECHO)
    server = ConchProcess(tmp_path / "models", log=tmp_path / "log")
    server.__enter__()
    family = children(server)
    assert family
    server.stop(signal.SIGKILL)
    _, alive = psutil.wait_procs(family, timeout=60)
    assert alive == []


def test_a_dead_child_costs_its_own_request_and_comes_back(tmp_path: Path) -> None:
    body = "value = int(request.inputs()[0].as_numpy()[0])\nif value == 13:\n    os._exit(3)\n" + ECHO
    write_python(tmp_path / "models", "crashing", ONE_INT, body)
    write_python(tmp_path / "models", "other", ONE_INT, ECHO)
    with ConchProcess(tmp_path / "models", log=tmp_path / "log") as server:
        assert ask(server, "crashing", 1) == 1
        (before,) = [child.pid for child, line in command_lines(server.process.pid) if "crashing" in " ".join(line)]
        with pytest.raises(InferenceServerException, match="Stub process 'crashing_0' is not healthy") as caught:
            ask(server, "crashing", 13)
        assert "exited with status 3" in str(caught.value)
        assert ask(server, "other", 5) == 5
        server.until("/v2/models/crashing/ready")
        assert ask(server, "crashing", 2) == 2
        (after,) = [child.pid for child, line in command_lines(server.process.pid) if "crashing" in " ".join(line)]
        assert after != before


def test_a_child_that_cannot_come_back_is_not_ready(tmp_path: Path) -> None:
    more = """
    def initialize(self, args):
        if os.path.exists(args["model_repository"] + "/poisoned"):
            raise RuntimeError("poisoned")
    """
    write_python(tmp_path / "models", "m", ONE_INT, "os._exit(1)", more=more)
    with ConchProcess(tmp_path / "models", log=tmp_path / "log") as server:
        (tmp_path / "models" / "m" / "poisoned").write_text("")
        with pytest.raises(InferenceServerException, match="not healthy"):
            ask(server, "m", 1)
        server.until("/v2/models/m/ready", 400)
        server.until("/v2/health/ready", 400)
        with pytest.raises(InferenceServerException, match="not ready"):
            ask(server, "m", 1)
        (tmp_path / "models" / "m" / "poisoned").unlink()
        server.until("/v2/models/m/ready")


def test_polling_follows_the_folder(tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_identity(models, "first", "INT32", 1)
    with ConchProcess(models, "--model-control-mode=poll", "--repository-poll-secs=1", log=tmp_path / "log") as server:
        write_identity(models, "second", "INT32", 1)
        server.until("/v2/models/second/ready")
        (models / "first").rename(tmp_path / "gone")
        server.until("/v2/models/first/ready", 400)


def test_what_a_model_prints_is_in_the_log_with_its_name(tmp_path: Path) -> None:
    body = 'print("hello from the model")\npb_utils.Logger.log_warn("beware")\n' + ECHO
    write_python(tmp_path / "models", "m", ONE_INT, body)
    with ConchProcess(tmp_path / "models", log=tmp_path / "log") as server:
        ask(server, "m", 1)
        deadline = time.monotonic() + 60
        while "beware" not in server.text or "hello" not in server.text:
            assert time.monotonic() < deadline, server.text
            time.sleep(0.02)
        assert re.search(r'^I.*"\[m_0\] hello from the model"$', server.text, re.MULTILINE)
        assert re.search(r'^W.* model\.py:\d+\] "\[m_0\] beware"$', server.text, re.MULTILINE)


def test_ports_of_each_kind_can_be_switched_off(tmp_path: Path) -> None:
    write_identity(tmp_path / "models", "m", "INT32", 1)
    flags = ["--allow-grpc=false", "--allow-metrics=false"]
    with ConchProcess(tmp_path / "models", *flags, log=tmp_path / "log") as server:
        listening = [c for c in psutil.Process(server.process.pid).net_connections("inet") if c.status == "LISTEN"]
        assert [c.laddr.port for c in listening] == [server.ports["http"]]


def unused_shared_memory() -> set[str]:
    """Name the files in /dev/shm that no process has mapped; those of tests beside this one come and go."""
    unused = set(os.listdir("/dev/shm"))  # noqa: PTH208
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            unused -= {Path(part.path).name for part in process.memory_maps() if part.path.startswith("/dev/shm/")}
    return unused


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    before = unused_shared_memory()
    large = f"input {tensor('INPUT0', 'FP32', -1)} output {tensor('OUTPUT0', 'FP32', -1)}"
    write_python(tmp_path / "models", "m", large, ECHO)
    with ConchProcess(tmp_path / "models", log=tmp_path / "log") as server:
        with triton.InferenceServerClient(server.http) as client:
            values: Any = np.zeros(500_000, np.float32)
            given = triton.InferInput("INPUT0", [500_000], "FP32")
            given.set_data_from_numpy(values)
            client.infer("m", [given])
        family = children(server)
    assert not any(child.is_running() for child in family)
    deadline = time.monotonic() + 60
    while unused_shared_memory() - before:
        assert time.monotonic() < deadline, unused_shared_memory() - before
        time.sleep(0.1)
