"""Frontend processes: what is different from one process. That answers are the same is for the conformance tests."""

import asyncio
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from queue import SimpleQueue
from threading import Event
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from conch.domain.events.log import EventLog
from conch.server.frontends.processes import supervisor
from conch.server.options.server_options import ServerOptions
from conch.server.server import Server
from tests.server.chaos.accounting import resting, settled
from tests.support.models import write_identity, write_scripted
from tests.support.server_process import ConchProcess

TIMEOUT_S = 60
FLAGS = ("--frontend-processes=2", "--model-control-mode=explicit", "--load-model=*", "--log-requests=all")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    folder = tmp_path_factory.mktemp("frontends")
    write_models(folder / "models")
    with ConchProcess(folder / "models", *FLAGS, log=folder / "log") as server:
        yield server


def write_models(root: Path) -> None:
    write_identity(root, "echo", "FP32", -1)
    delay = 'parameters { key: "execute_delay_ms" value { string_value: "300" } }'
    write_identity(root, "slow", "FP32", 1, extra=delay)
    write_scripted(root, "talker", {"reply": "one two three four", "chat_template": "{{ messages[0].content }}"})
    write_scripted(root, "endless", {"reply": "again " * 2000, "step_ms": 50})


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def frontends(server: ConchProcess) -> list[psutil.Process]:
    processes = []
    for process in psutil.Process(server.process.pid).children():
        with suppress(psutil.Error):  # it has just ended
            processes += [process] if "frontend " in " ".join(process.cmdline()) else []
    return processes


def body(*values: float) -> bytes:
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [len(values)], "data": values}
    return json.dumps({"inputs": [tensor]}).encode()


def ask(connection: HTTPConnection, model: str = "echo", value: float = 1.0) -> int:
    """Infer, check the answer, and return its status."""
    connection.request("POST", f"/v2/models/{model}/infer", body(value))
    response = connection.getresponse()
    answer = json.loads(response.read())
    if response.status == 200:
        assert answer["outputs"][0]["data"] == [value]
    return response.status


def connect(server: ConchProcess) -> HTTPConnection:
    return HTTPConnection("127.0.0.1", server.ports["http"], timeout=TIMEOUT_S)


def metric(server: ConchProcess, name: str) -> dict[str, float]:
    lines = (line.rpartition(" ") for line in server.metrics().splitlines() if line.startswith(name))
    return {series: float(value) for series, _, value in lines}


def number_of(server: ConchProcess, name: str, model: str) -> float:
    return sum(metric(server, f'{name}{{model="{model}"').values())


def answered(server: ConchProcess) -> float:
    return number_of(server, "nv_inference_request_success", "slow")


@pytest.mark.parametrize("client", [tritonclient.http, tritonclient.grpc], ids=["http", "grpc"])
def test_tensors_of_all_sizes_come_back(server: ConchProcess, client: Any) -> None:
    address = server.http if client is tritonclient.http else server.grpc
    with client.InferenceServerClient(address) as connection:
        for size in (0, 1, 16_384, 16_385, 1_000_000):
            sent = np.arange(size, dtype=np.float32)
            given = client.InferInput("INPUT0", sent.shape, "FP32")
            given.set_data_from_numpy(sent)
            np.testing.assert_array_equal(connection.infer("echo", [given]).as_numpy("OUTPUT0"), sent)


def test_both_processes_have_clients_and_one_page_counts_them(server: ConchProcess) -> None:
    before = metric(server, "nv_inference_request_success")['nv_inference_request_success{model="echo",version="1"}']
    connections = [connect(server) for _ in range(40)]
    assert [ask(connection) for connection in connections] == [200] * 40
    until(lambda: sum(metric(server, "conch_frontend_connections{").values()) == 40)
    assert all(metric(server, "conch_frontend_connections{").values())
    assert metric(server, 'conch_connections{protocol="http"}') == {'conch_connections{protocol="http"}': 40}
    counted = metric(server, "nv_inference_request_success")
    assert counted['nv_inference_request_success{model="echo",version="1"}'] == before + 40
    for connection in connections:
        connection.close()
    until(lambda: not any(metric(server, "conch_frontend_connections{").values()))


def test_a_request_is_logged_once_by_the_server(server: ConchProcess) -> None:
    connection = connect(server)
    connection.request("POST", "/v2/models/echo/infer", b'{"id":"only-once",' + body(1.0)[1:])
    assert connection.getresponse().read()
    until(lambda: "only-once" in server.text)
    assert server.text.count("only-once") == 1
    connection.close()


def events(server: ConchProcess) -> EventLog:
    with urllib.request.urlopen(f"http://{server.http}/v2/debug/events?last=300", timeout=TIMEOUT_S) as response:
        return EventLog.of_bytes(response.read())


def test_calls_of_both_processes_have_rows_in_the_event_log(server: ConchProcess) -> None:
    """Each call once, with the request that it made, and also one that is refused over gRPC."""
    connections = [connect(server) for _ in range(12)]
    for number, connection in enumerate(connections):
        connection.request("POST", "/v2/models/echo/infer", body(1.0), {"X-Request-Id": f"call-{number}"})
        assert connection.getresponse().read()
        connection.close()
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client, pytest.raises(InferenceServerException):
        client.infer("echo", [], headers={"x-request-id": "call-refused"})

    def rows() -> tuple[list[Any], list[Any]]:
        log = events(server)
        requests = {log.find(f"call-{number}") for number in range(12) if f"call-{number}" in log.names}
        calls = list(log.tables["exchanges"])
        return [call for call in calls if call["request"] in requests], [call for call in calls if call["status"] == 3]

    until(lambda: [len(calls) for calls in rows()] == [12, 1])
    answered, _ = rows()
    assert len({int(call["request"]) for call in answered}) == 12
    assert len({int(call["number"]) >> 40 for call in answered} - {0}) == 2
    for call in answered:
        assert (call["status"], call["bytes_in"]) == (200, len(body(1.0)))
        assert 0 < call["received"] <= call["decoded"] <= call["answered"] <= call["encoded"] <= call["drained"]


def clients_of(process: psutil.Process) -> set[int]:
    """The ports of the clients that are connected to a process."""
    return {client.raddr.port for client in process.net_connections() if client.status == psutil.CONN_ESTABLISHED}


def test_a_killed_process_loses_its_own_connections_only(server: ConchProcess) -> None:
    """What is sent is answered or fails with its connection; connections to the other process see nothing."""
    stop = Event()
    connections = [connect(server) for _ in range(12)]
    for connection in connections:
        assert ask(connection) == 200
    killed, other = frontends(server)
    kept = clients_of(other)

    def load(connection: HTTPConnection) -> tuple[int, Counter[str]]:
        counts: Counter[str] = Counter()
        port = connection.sock.getsockname()[1]
        while not stop.is_set():
            counts["sent"] += 1
            try:
                counts[str(ask(connection))] += 1
            except (HTTPException, OSError):
                counts["lost"] += 1
                connection.close()
                connection = connect(server)
        connection.close()
        return port, counts

    restarts = metric(server, "conch_frontend_restarts_total")["conch_frontend_restarts_total"]
    with ThreadPoolExecutor(12) as threads:
        futures = [threads.submit(load, connection) for connection in connections]
        try:
            killed.kill()
            with tritonclient.http.InferenceServerClient(server.http) as control, suppress(HTTPException, OSError):
                control.load_model("echo")  # a reload meanwhile changes nothing
            until(lambda: len({process.pid for process in frontends(server)} - {killed.pid}) == 2)
        finally:
            stop.set()
    for port, counts in (future.result() for future in futures):
        assert counts["sent"] == counts["200"] + counts["lost"], counts
        assert port not in kept or not counts["lost"], counts
    assert metric(server, "conch_frontend_restarts_total")["conch_frontend_restarts_total"] == restarts + 1
    assert f"(process {killed.pid}) was killed by SIGKILL; restarting" in server.text
    for _ in range(8):
        connection = connect(server)
        assert ask(connection) == 200
        connection.close()


def chat(model: str) -> bytes:
    return json.dumps({"model": model, "messages": [{"role": "user", "content": "x"}], "stream": True}).encode()


def test_streams_of_both_processes_are_counted_by_the_core(server: ConchProcess) -> None:
    name = "vllm:generation_tokens_total{"
    before = sum(metric(server, name).values())
    texts = []
    for _ in range(8):
        connection = connect(server)
        connection.request("POST", "/v1/chat/completions", chat("talker"))
        events = connection.getresponse().read().decode().split("\n\n")
        chunks = [json.loads(event[6:]) for event in events if event.startswith("data: {")]
        texts.append("".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks))
        connection.close()
    assert texts == ["one two three four"] * 8
    tokens = sum(metric(server, name).values()) - before
    assert tokens > 0
    assert tokens % 8 == 0


def test_a_disconnected_reader_of_a_stream_ends_its_generation(server: ConchProcess) -> None:
    body_ = json.dumps({"model": "endless", "prompt": "x", "stream": True, "max_tokens": 2000}).encode()
    connection = connect(server)
    connection.request("POST", "/v1/completions", body_)
    response = connection.getresponse()
    assert response.read(1)
    until(lambda: sum(metric(server, "vllm:num_requests_running{").values()) == 1)
    response.close()
    connection.close()
    until(lambda: not sum(metric(server, "vllm:num_requests_running{").values()))


def test_reload_under_load_loses_nothing(server: ConchProcess) -> None:
    stop = Event()

    def load(_: int) -> set[int]:
        connection, statuses = connect(server), set()
        while not stop.is_set():
            statuses.add(ask(connection))
        connection.close()
        return statuses

    with ThreadPoolExecutor(6) as threads, tritonclient.http.InferenceServerClient(server.http) as control:
        futures = [threads.submit(load, number) for number in range(6)]
        try:
            for _ in range(5):
                control.load_model("echo")
        finally:
            stop.set()
        assert set().union(*(future.result() for future in futures)) == {200}


def test_all_processes_know_a_model_when_its_load_is_answered(server: ConchProcess) -> None:
    connections = [connect(server) for _ in range(8)]
    with tritonclient.http.InferenceServerClient(server.http) as control:
        for _ in range(3):
            control.unload_model("echo")
            assert {ask(connection) for connection in connections} == {404}
            control.load_model("echo")
            assert {ask(connection) for connection in connections} == {200}
    for connection in connections:
        connection.close()


def test_a_disconnected_client_cancels_its_request(server: ConchProcess) -> None:
    name = 'nv_inference_request_failure{model="slow",reason="CANCELED",version="1"}'
    before = metric(server, name).get(name, 0.0)
    with socket.create_connection(("127.0.0.1", server.ports["http"])) as connection:
        content = body(1.0)
        head = f"POST /v2/models/slow/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n"
        connection.sendall(head.encode() + content)
    until(lambda: metric(server, name).get(name, 0.0) == before + 1)


def test_what_is_forwarded_has_its_clients_address(server: ConchProcess) -> None:
    """An endpoint for clients on this machine is open to one, and to none that says it comes from elsewhere."""
    connection = connect(server)
    connection.request("GET", "/v2/limits")
    response = connection.getresponse()
    assert (response.status, b"clients on this machine" in response.read()) == (200, False)
    connection.request("GET", "/v2/limits", headers={"X-Forwarded-For": "1.2.3.4"})
    response = connection.getresponse()
    assert (response.status, b"clients on this machine" in response.read()) == (403, True)
    connection.close()


def test_the_stop_answers_what_is_in_flight(tmp_path: Path) -> None:
    write_models(tmp_path / "models")
    with ConchProcess(tmp_path / "models", *FLAGS, log=tmp_path / "log") as server, ThreadPoolExecutor(4) as threads:
        pids = [process.pid for process in frontends(server)]
        connections = [connect(server) for _ in range(4)]
        futures = [threads.submit(ask, connection, "slow") for connection in connections]
        # All are queued, executing or answered.
        until(lambda: number_of(server, "nv_inference_pending_request_count", "slow") + answered(server) >= 3)
        server.process.send_signal(signal.SIGTERM)
        assert {future.result() for future in futures} == {200}
        assert server.process.wait(TIMEOUT_S) == 0
        for connection in connections:
            connection.close()
    assert not any(map(psutil.pid_exists, pids))


def test_the_stop_does_not_wait_for_a_process_that_is_being_replaced(tmp_path: Path) -> None:
    write_models(tmp_path / "models")
    with ConchProcess(tmp_path / "models", *FLAGS, log=tmp_path / "log") as server:
        frontends(server)[0].kill()
        server.until_logged("was killed by SIGKILL; restarting")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(TIMEOUT_S) == 0
    assert "cannot restart" not in server.text


def test_a_refused_generation_over_grpc_ends_neither_process(server: ConchProcess) -> None:
    processes = {process.pid for process in frontends(server)}
    prompt = tritonclient.grpc.InferInput("text_input", [1], "BYTES")
    prompt.set_data_from_numpy(np.array([b"x"], dtype=object))
    for _ in range(4):
        with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
            answers: SimpleQueue[Any] = SimpleQueue()
            client.start_stream(lambda result, error, answers=answers: answers.put((result, error)))
            client.async_stream_infer("talker", [prompt], parameters={"max_tokens": 0})
            result, error = answers.get(timeout=TIMEOUT_S)
            assert result is None
            assert "max_tokens must be at least 1, got 0" in str(error)
    assert {process.pid for process in frontends(server)} == processes


def test_a_killed_fork_server_leaves_nothing(tmp_path: Path) -> None:
    """Starts fail until it has been replaced, too: each has a socket and two arenas."""
    write_identity(tmp_path / "models", "echo", "FP32", -1)
    with ConchProcess(tmp_path / "models", "--frontend-processes=2", log=tmp_path / "log") as server:
        held = resting(server.process.pid)
        for _ in range(3):
            for child in psutil.Process(server.process.pid).children(recursive=True):
                child.kill()
            settled(server.process.pid, held)
        until(lambda: len(frontends(server)) == 2)
        assert server.text.count("restarting") >= 6


def test_processes_end_with_a_killed_server(tmp_path: Path) -> None:
    write_models(tmp_path / "models")
    server = ConchProcess(tmp_path / "models", *FLAGS, log=tmp_path / "log")
    server.__enter__()
    pids = [process.pid for process in psutil.Process(server.process.pid).children(recursive=True)]
    assert len(pids) >= 2
    server.process.kill()
    server.process.wait()
    until(lambda: not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids))

    def refused() -> bool:
        try:
            socket.create_connection(("127.0.0.1", server.ports["http"])).close()
        except ConnectionRefusedError:
            return True
        return False

    until(refused)


def test_more_clients_than_descriptors(server: ConchProcess) -> None:
    """Clients without a descriptor are turned away at once; connected ones are served, and others when it passes."""
    connected = [connect(server) for _ in range(4)]
    assert [ask(connection) for connection in connected] == [200] * 4
    processes = frontends(server)
    limits = [process.rlimit(resource.RLIMIT_NOFILE) for process in processes]

    def served(client: HTTPConnection) -> bool:
        with suppress(HTTPException, OSError):
            return ask(client) == 200
        return False

    for process, (_, hard) in zip(processes, limits, strict=True):
        highest = max(int(file.name) for file in Path(f"/proc/{process.pid}/fd").iterdir())
        process.rlimit(resource.RLIMIT_NOFILE, (highest + 4, hard))
    try:
        crowd = [connect(server) for _ in range(24)]
        assert 0 < sum(map(served, crowd)) < 24
        assert [ask(connection) for connection in connected] == [200] * 4
        for client in crowd:
            client.close()
    finally:
        for process, limit in zip(processes, limits, strict=True):
            process.rlimit(resource.RLIMIT_NOFILE, limit)

    def room_again() -> bool:
        with closing(connect(server)) as client:
            return served(client)

    until(room_again)
    assert {process.pid for process in frontends(server)} == {process.pid for process in processes}
    for connection in connected:
        connection.close()


def test_shared_memory_takes_no_space_of_dev_shm(server: ConchProcess) -> None:
    """Containers have 64 MB there; a larger tensor passes, and no process maps a file of it."""
    values = np.ones(20_000_000, np.float32)
    with tritonclient.http.InferenceServerClient(server.http) as client:
        given = tritonclient.http.InferInput("INPUT0", values.shape, "FP32")
        given.set_data_from_numpy(values)
        np.testing.assert_array_equal(client.infer("echo", [given]).as_numpy("OUTPUT0"), values)
    for process in (psutil.Process(server.process.pid), *frontends(server)):
        maps = Path(f"/proc/{process.pid}/maps").read_text()
        assert "conch frontend" in maps
        assert "/dev/shm/" not in maps


async def test_a_stopped_process_is_replaced_and_a_full_arena_costs_speed_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "ARENA_BYTES", 1 << 20)
    write_models(tmp_path / "models")
    options = ServerOptions(
        model_repository=(str(tmp_path / "models"),),
        http_port=0,
        grpc_port=0,
        metrics_port=0,
        http_address="127.0.0.1",
        grpc_address="127.0.0.1",
        frontend_processes=2,
        process_debugging=True,
    )
    async with Server(options).running() as server:
        values = np.arange(400_000, dtype=np.float32)  # 1.6 MB each way, of an arena of 1 MiB

        def infer() -> Any:
            given = tritonclient.http.InferInput("INPUT0", values.shape, "FP32")
            given.set_data_from_numpy(values)
            with tritonclient.http.InferenceServerClient(f"127.0.0.1:{server.ports['http']}") as client:
                return client.infer("echo", [given]).as_numpy("OUTPUT0")

        np.testing.assert_array_equal(await asyncio.to_thread(infer), values)
        processes = server.frontend_processes
        assert processes is not None
        stopped = processes.running[0].child
        os.kill(stopped.pid, signal.SIGSTOP)
        with monkeypatch.context() as impatient:  # for this alone: on a busy machine others may be late, too
            impatient.setattr(supervisor, "MAX_MISSED_REPORTS", 1)
            async with asyncio.timeout(TIMEOUT_S):
                while stopped.alive:
                    await asyncio.sleep(0.05)
        assert "it has not answered" in str(stopped.exit)
        async with asyncio.timeout(TIMEOUT_S):
            while len(processes.running) < 2 or not all(frontend.started.done() for frontend in processes.running):
                await asyncio.sleep(0.05)
        np.testing.assert_array_equal(await asyncio.to_thread(infer), values)


@pytest.mark.parametrize("value", ["0", "-1", "65", "1e9", "many", ""])
def test_an_absurd_number_is_refused(value: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "conch", "serve", f"--model-repository={tmp_path}"]
    flag = f"--frontend-processes={value}"
    result = subprocess.run([*command, flag], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert result.returncode == 2
    assert "frontend-processes" in result.stderr
    assert "1 to 64" in result.stderr


@pytest.mark.parametrize(("cores", "expected"), [(1, 1), (4, 1), (5, 2), (16, 4), (128, 8)])
def test_auto_is_one_process_up_to_four_cores(cores: int, expected: int) -> None:
    assert supervisor.frontends_for(cores) == expected
