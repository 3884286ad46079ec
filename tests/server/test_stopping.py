"""Signals: the first one stops gracefully, the second one at once, whatever the event loop is doing."""

import asyncio
import base64
import http.client
import json
import signal
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from textwrap import dedent
from time import monotonic, sleep

import numpy as np
import psutil
import pytest
import tritonclient.grpc as triton
from onnx import helper, numpy_helper
from tritonclient.utils import InferenceServerException

from tests.server.backends.makers import config
from tests.server.backends.onnxruntime.onnx_models import FP32, write_model
from tests.server.load import until
from tests.support.models import ECHO, tensor, write_ensemble, write_python
from tests.support.server_process import ConchProcess

NUMBERS = f"input {tensor('INPUT0', 'INT32', 1)} output {tensor('OUTPUT0', 'INT32', 1)}"
TIMEOUT_S = 60

STUCK_LOOP = """
    class Stuck(Backend):
        name = "stuck"
        async def complete(self, source):
            Path({begun!r}).touch()
            {how}
        def instance(self, plan):
            raise AssertionError
"""
STUCK_THREAD = """
    Path({begun!r}).touch()
    {how}
"""


def install_backend(site: Path, code: str) -> None:
    """Write an installed package that brings the backend 'stuck'."""
    about = site / "stuck-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: stuck\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[conch.backends]\nstuck = stuck_backend:Stuck\n")
    head = "import time\nfrom pathlib import Path\nfrom conch.server.backends.base import Backend\n"
    (site / "stuck_backend.py").write_text(head + dedent(code))


@contextmanager
def starting(server: ConchProcess) -> Iterator[ConchProcess]:
    """Start a server that may end with any status."""
    server.__enter__()
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = monotonic() + TIMEOUT_S
    while not condition():
        assert monotonic() < deadline
        sleep(0.01)


def handles(pid: int, number: signal.Signals) -> bool:
    """Whether a process handles a signal itself."""
    status = Path(f"/proc/{pid}/status").read_text()
    (caught,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (number - 1) & 1)


@pytest.mark.parametrize("how", ["time.sleep(600)", "while True: pass"])
def test_a_second_signal_ends_a_server_whose_loop_is_stuck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    begun = tmp_path / "begun"
    install_backend(tmp_path / "site", STUCK_LOOP.format(begun=str(begun), how=how))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    (tmp_path / "models" / "m" / "1").mkdir(parents=True)
    (tmp_path / "models" / "m" / "config.pbtxt").write_text('backend: "stuck"')
    with starting(ConchProcess(tmp_path / "models", log=tmp_path / "log", wait="")) as server:
        wait_for(begun.exists)
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: not handles(server.process.pid, signal.SIGTERM))
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(TIMEOUT_S) == -signal.SIGTERM


def test_a_load_that_does_not_end_cannot_outlast_the_exit_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = tmp_path / "begun"
    install_backend(tmp_path / "site", STUCK_THREAD.format(begun=str(begun), how="time.sleep(600)"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    (tmp_path / "models" / "m" / "1").mkdir(parents=True)
    (tmp_path / "models" / "m" / "config.pbtxt").write_text('backend: "stuck"')
    server = ConchProcess(tmp_path / "models", "--exit-timeout-secs=1", log=tmp_path / "log", wait="live")
    with starting(server):
        wait_for(begun.exists)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(TIMEOUT_S) == 1
        assert "a model is still loading; exiting without waiting for it" in server.text


@pytest.mark.parametrize("warmed", [False, True])
def test_ctrl_c_ends_a_server_whose_native_code_loads_or_warms_up_with_status_0(tmp_path: Path, warmed: bool) -> None:
    table = numpy_helper.from_array(np.ones((1000, 1000), np.float32), "P0")
    nodes = [helper.make_node("MatMul", [f"P{number}", "P0"], [f"P{number + 1}"]) for number in range(80)]
    if warmed:  # the input keeps the load from computing the graph
        nodes[0] = helper.make_node("MatMul", ["IN", "P0"], ["P1"])
    nodes.append(helper.make_node("Add", ["IN", "P80"], ["OUT"]))
    kind = (FP32, [1000, 1000])
    write_model(tmp_path / "models" / "m", nodes, {"IN": kind}, {"OUT": kind}, initializers=[table])
    sample = 'inputs { key: "IN" value { data_type: TYPE_FP32 dims: [1000, 1000] zero_data: true } }'
    config(tmp_path / "models" / "m", "onnxruntime", f'model_warmup {{ name: "w" {sample} }}' if warmed else "")
    with starting(ConchProcess(tmp_path / "models", log=tmp_path / "log", wait="live")) as server:
        wait_for(lambda: "intra-op threads" in server.text if warmed else "loading: m:1" in server.text)
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(TIMEOUT_S) == 0
        assert "terminate called" not in server.text


def test_sighup_stops_gracefully(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    write_python(tmp_path / "elsewhere", "m", NUMBERS, ECHO)
    files = {
        f"file:1/{path.name}": base64.b64encode(path.read_bytes()).decode()
        for path in (tmp_path / "elsewhere" / "m" / "1").iterdir()
    }
    config = {"backend": "python", "input": [{"name": "INPUT0", "data_type": "TYPE_INT32", "dims": [1]}]}
    config["output"] = [{"name": "OUTPUT0", "data_type": "TYPE_INT32", "dims": [1]}]
    body = json.dumps({"parameters": {"config": json.dumps(config), **files}}).encode()
    (tmp_path / "models").mkdir()
    server = ConchProcess(tmp_path / "models", "--model-control-mode=explicit", log=tmp_path / "log")
    with starting(server):
        load = f"http://{server.http}/v2/repository/models/m/load"
        with urllib.request.urlopen(load, data=body, timeout=TIMEOUT_S) as reply:
            assert reply.status == 200
        assert list(temporary.glob("conch-model-*"))
        family = psutil.Process(server.process.pid).children(recursive=True)
        assert family
        server.process.send_signal(signal.SIGHUP)
        assert server.process.wait(TIMEOUT_S) == 0
    assert psutil.wait_procs(family, timeout=TIMEOUT_S)[1] == []
    assert list(temporary.iterdir()) == []


def test_sighup_stays_ignored_under_nohup(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        server = ConchProcess(tmp_path / "models", log=tmp_path / "log")
        server.__enter__()
    finally:
        signal.signal(signal.SIGHUP, before)
    server.process.send_signal(signal.SIGHUP)
    server.until("/v2/health/ready")
    assert server.stop() == 0


async def test_an_interrupt_says_how_many_requests_are_in_flight(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    slow = f"while not os.path.exists({str(gate)!r}): time.sleep(0.01)\n" + ECHO
    write_python(tmp_path / "models", "m", f"{NUMBERS} instance_group {{ count: 2 }}", slow)
    ends = f"input {tensor('IN', 'INT32', 1)}", f"output {tensor('OUT', 'INT32', 1)}"
    write_ensemble(tmp_path / "models", "around", *ends, ("m", {"INPUT0": "IN"}, {"OUTPUT0": "OUT"}))
    with ConchProcess(tmp_path / "models", log=tmp_path / "log") as server:
        asked = [
            asyncio.create_task(asyncio.to_thread(infer, server.http, model, name))
            for model, name in (("m", "INPUT0"), ("m", "INPUT0"), ("around", "IN"))
        ]
        pending = 'nv_inference_pending_request_count{model="m",version="1"} 1'
        await until(lambda: pending in server.metrics())
        server.process.send_signal(signal.SIGINT)
        await until(lambda: "Waiting for in-flight requests to complete." in server.text)
        assert "3 in flight; a second Ctrl-C or SIGTERM kills the server" in server.text
        gate.touch()
        assert await asyncio.gather(*asked) == [200, 200, 200]
        assert await asyncio.to_thread(server.process.wait, TIMEOUT_S) == 0


async def test_open_connections_are_answered_while_the_server_drains(tmp_path: Path) -> None:
    gate, begun = tmp_path / "gate", tmp_path / "begun"
    slow = f"open({str(begun)!r}, 'w')\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)\n" + ECHO
    write_python(tmp_path / "models", "m", NUMBERS, slow)
    stopping = "Server is stopping, scheduler for model has stopped accepting new inference requests"
    body = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1], "datatype": "INT32", "data": [3]}]})
    number = triton.InferInput("INPUT0", [1], "INT32")
    number.set_data_from_numpy(np.array([3], np.int32))
    ends = f"input {tensor('IN', 'INT32', 1)}", f"output {tensor('OUT', 'INT32', 1)}"
    write_ensemble(tmp_path / "models", "around", *ends, ("m", {"INPUT0": "IN"}, {"OUTPUT0": "OUT"}))
    with ConchProcess(tmp_path / "models", log=tmp_path / "log") as server:
        connection = http.client.HTTPConnection(server.http, timeout=TIMEOUT_S)

        def ask(method: str, path: str, sent: str | None = None) -> tuple[int, str, str | None]:
            connection.request(method, path, sent)
            response = connection.getresponse()
            return response.status, response.read().decode(), response.getheader("Content-Length")

        with closing(connection), triton.InferenceServerClient(server.grpc) as grpc:
            assert ask("GET", "/v2/health/ready") == (200, "", "0")
            assert grpc.is_server_ready()
            asked = asyncio.create_task(asyncio.to_thread(infer, server.http, "m", "INPUT0"))
            await until(begun.exists)
            server.process.send_signal(signal.SIGTERM)
            await until(lambda: ask("GET", "/v2/health/ready") == (400, "", "0"))
            assert ask("GET", "/v2/health/live") == (200, "", "0")
            for endpoint in ("infer", "generate"):
                status, text, _ = ask(
                    "POST", f"/v2/models/m/{endpoint}", body if endpoint == "infer" else '{"INPUT0":3}'
                )
                assert (status, json.loads(text)["error"]) == (503, f"[request id: <id_unknown>] {stopping}")
            with pytest.raises(InferenceServerException, match=stopping) as refused:
                grpc.infer("m", [number])
            assert refused.value.status() == "StatusCode.UNAVAILABLE"
            status, text, _ = ask("POST", "/v2/models/around/infer", body.replace("INPUT0", "IN"))
            within = f"in ensemble 'around', [request id: <id_unknown>] {stopping}"
            assert (status, json.loads(text)["error"]) == (503, within)
            assert (grpc.is_server_live(), grpc.is_server_ready()) == (True, False)
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", server.ports["http"])
            gate.touch()
            assert await asked == 200
            assert await asyncio.to_thread(server.process.wait, TIMEOUT_S) == 0


async def test_an_exit_timeout_says_what_is_left(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    write_python(tmp_path / "models", "m", NUMBERS, f"open({str(begun)!r}, 'w')\ntime.sleep(600)\n" + ECHO)
    with starting(ConchProcess(tmp_path / "models", "--exit-timeout-secs=1", log=tmp_path / "log")) as server:
        body = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1], "datatype": "INT32", "data": [3]}]})
        with closing(http.client.HTTPConnection(server.http, timeout=TIMEOUT_S)) as connection:
            connection.request("POST", "/v2/models/m/infer", body)
            await until(begun.exists)
            server.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(server.process.wait, TIMEOUT_S) == 1
        said = "Exit timeout expired. Exiting immediately. (1 requests in flight, 1 connections open)"
        assert said in server.text


def infer(address: str, model: str, name: str) -> int:
    body = {"inputs": [{"name": name, "shape": [1], "datatype": "INT32", "data": [3]}]}
    url = f"http://{address}/v2/models/{model}/infer"
    with urllib.request.urlopen(url, data=json.dumps(body).encode(), timeout=TIMEOUT_S) as reply:
        return int(reply.status)
