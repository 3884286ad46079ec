"""`conch top` and its reader at a real server: rates of requests, queues, degradations, without and with a terminal."""

import json
import os
import pty
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator

import pytest

from conch.base.errors import Unavailable
from conch.clients.server_view import ServerAddress, ServerReader, find_address, rates
from tests.support.models import ECHO, tensor, write_python
from tests.support.ports import free_port
from tests.support.server_process import ConchProcess

TENSORS = f"input {tensor('INPUT0', 'FP32', -1)} output {tensor('OUTPUT0', 'FP32', -1)}"
BODY = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1], "datatype": "FP32", "data": [1]}]}).encode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    folder = tmp_path_factory.mktemp("top")
    write_python(folder / "models", "hopeful", f"{TENSORS} instance_group {{ kind: KIND_GPU }}", ECHO)
    with ConchProcess(folder / "models", "--metrics-interval-ms=50", log=folder / "log") as process:
        yield process


def address(server: ConchProcess) -> ServerAddress:
    return ServerAddress(f"http://{server.http}", f"http://127.0.0.1:{server.ports['metrics']}")


def infer(server: ConchProcess) -> None:
    with urllib.request.urlopen(f"http://{server.http}/v2/models/hopeful/infer", BODY, timeout=30) as answer:
        answer.read()


def command(server: ConchProcess, *flags: str) -> list[str]:
    at = address(server)
    return [sys.executable, "-m", "conch", "top", "--url", at.url, "--metrics-url", at.metrics, *flags]


def test_two_readings_have_the_rates_of_what_came_between(server: ConchProcess) -> None:
    reader = ServerReader(address(server))
    before = reader.read()
    for _ in range(5):
        infer(server)
    now = reader.read()
    (model,) = now.models
    assert (model.name, model.state, model.backend, model.device, model.instances) == (
        *("hopeful", "READY", "python", "CPU"),
        1,
    )
    assert model.degraded == ("kind_gpu_on_cpu",)
    assert "interpreted_build" in now.degraded
    assert rates(None, now) == {}
    (change,) = rates(before, now).values()
    assert change.requests * (now.taken_s - before.taken_s) == pytest.approx(5)
    assert change.batch == 1
    assert change.median_s is not None
    assert change.slow_s is not None
    assert change.median_s <= change.slow_s


def test_memory_of_processes_is_read_once_it_is_sampled(server: ConchProcess) -> None:
    reader = ServerReader(address(server))
    while not reader.read().models[0].memory_bytes:
        pass


def test_json_has_models_and_rates(server: ConchProcess) -> None:
    done = subprocess.run(command(server, "--json", "--interval", "10ms"), check=True, capture_output=True, text=True)
    reading = json.loads(done.stdout)
    (model,) = reading["models"]
    assert model["rates"]["requests"] == 0
    assert (model["name"], model["queued"], model["degraded"]) == ("hopeful", 0, ["kind_gpu_on_cpu"])
    assert reading["memory_bytes"] > 0


def test_without_a_terminal_one_plain_table_is_printed(server: ConchProcess) -> None:
    done = subprocess.run(command(server, "--interval", "10ms"), check=True, capture_output=True, text=True)
    assert "1 of 1 models ready" in done.stdout
    assert "degraded: kind_gpu_on_cpu (hopeful)  Inference takes the CPU's time" in done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize("columns", [40, 80])
def test_table_fits_the_terminal(server: ConchProcess, columns: int) -> None:
    terminal, end = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "LINES": "30", "TERM": "dumb", "NO_COLOR": "1"}
    process = subprocess.Popen(command(server, "--once", "--interval", "10ms"), stdout=end, env=environment)
    os.close(end)
    text = b""
    try:
        while piece := os.read(terminal, 65536):
            text += piece
    except OSError:  # Linux, when the other end is closed
        pass
    os.close(terminal)
    assert process.wait(60) == 0
    lines = text.decode().splitlines()
    assert max(map(len, lines)) <= columns
    assert any("hopeful" in line for line in lines)


def test_readings_continue_while_requests_are_executed(server: ConchProcess) -> None:
    thread = threading.Thread(target=lambda: [infer(server) for _ in range(20)])
    thread.start()
    reader = ServerReader(address(server))
    while thread.is_alive():
        assert len(reader.read().models) == 1
    thread.join()
    assert reader.read().models[0].requests >= 20


def test_no_server_is_said_with_the_cause() -> None:
    port = free_port()
    with pytest.raises(Unavailable, match=f"no server answers at http://127.0.0.1:{port}: connection refused"):
        ServerReader(find_address(f"127.0.0.1:{port}", None)).read()


def test_port_of_the_metrics_follows_that_of_the_api() -> None:
    assert find_address("http://gpu1", None).metrics == "http://gpu1:8002"
    assert find_address("http://[::1]:9000", None).metrics == "http://[::1]:9002"
    assert find_address("gpu1:8000", "http://x/metrics").metrics == "http://x/metrics"
