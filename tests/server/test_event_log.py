"""The event log of a real server: rows of requests, batches and their causes, and who may read it."""

import http.client
import json
import os
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.utils import InferenceServerException

from conch.domain.events.layout import KINDS, TIME
from conch.domain.events.log import EventLog
from tests.support.models import tensor, write_ensemble, write_identity, write_python, write_scripted
from tests.support.server_process import ConchProcess

_CODES = {(kind, column.name): column.codes for kind, columns in KINDS.items() for column in columns}
_NAMES = {column.name for columns in KINDS.values() for column in columns if column.meaning == "name"}


def call(url: str, body: dict[str, Any] | None = None, **headers: str) -> tuple[int, bytes]:
    data = None if body is None else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, named), timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


class Logged:
    """A server with an event log."""

    def __init__(self, server: ConchProcess, go: Path) -> None:
        self.server = server
        self.go = go  # a file for which the model "full" waits
        self.url = f"http://{server.http}/v2"

    def infer(self, model: str, *values: float, **more: Any) -> int:
        inputs = [{"name": "INPUT0", "shape": [1, len(values)], "datatype": "FP32", "data": values}]
        return call(f"{self.url}/models/{model}/infer", {"inputs": inputs, **more})[0]

    def log(self, last: float = 300) -> EventLog:
        status, data = call(f"{self.url}/debug/events?last={last}")
        assert status == 200, data
        return EventLog.of_bytes(data)

    def rows(self, kind: str, model: str = "", log: EventLog | None = None) -> list[dict[str, Any]]:
        """The rows of a model as dictionaries, with names and codes as texts."""
        log = log or self.log()
        rows = []
        for row in log.tables[kind]:
            cells: dict[str, Any] = {}
            for name in row.dtype.names:
                codes = _CODES[kind, name]
                value = int(row[name])
                cells[name] = codes[value] if codes else log.names[value] if name in _NAMES else value
            if not model or cells["model"] == model:
                rows.append(cells)
        return rows

    def until(self, kind: str, model: str, holds: Callable[[list[dict[str, Any]]], Any]) -> list[dict[str, Any]]:
        end = time.monotonic() + 60
        while not holds(rows := self.rows(kind, model)):
            assert time.monotonic() < end, rows
            time.sleep(0.02)
        return rows


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logged]:
    folder = tmp_path_factory.mktemp("events")
    models = folder / "models"
    ends = [f"input {tensor('INPUT0', 'FP32', -1)}", f"output {tensor('OUTPUT0', 'FP32', -1)}"]
    write_identity(models, "free", "FP32", -1, batch=8)
    write_identity(models, "cached", "FP32", -1, batch=8, extra="response_cache { enable: true }")
    write_identity(
        models,
        "batched",
        "FP32",
        -1,
        batch=8,
        extra="dynamic_batching { max_queue_delay_microseconds: 60000000 preferred_batch_size: [2] }",
    )
    write_identity(
        models, "delayed", "FP32", -1, batch=8, extra="dynamic_batching { max_queue_delay_microseconds: 1000 }"
    )
    write_python(
        models,
        "full",
        f"max_batch_size: 8 {ends[0]} {ends[1]} dynamic_batching {{ default_queue_policy {{ max_queue_size: 1 }} }}",
        f"""
        while not os.path.exists("{folder / "go"}"):
            time.sleep(0.01)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())])
        """,
    )
    write_identity(models, "stage", "FP32", -1, batch=8)
    write_identity(models, "spare", "FP32", -1, batch=8)
    steps = [
        ("stage", {"INPUT0": "INPUT0"}, {"OUTPUT0": "middle"}),
        ("free", {"INPUT0": "middle"}, {"OUTPUT0": "OUTPUT0"}),
    ]
    write_ensemble(models, "chain", "max_batch_size: 8 " + ends[0], ends[1], *steps)
    write_python(
        models,
        "caller",
        f"max_batch_size: 8 {ends[0]} {ends[1]}",
        """
        inner = pb_utils.InferenceRequest(
            model_name="stage", requested_output_names=["OUTPUT0"], inputs=request.inputs()
        )
        return inner.exec()
        """,
    )
    write_python(
        models,
        "busy",
        f"max_batch_size: 8 {ends[0]} {ends[1]}",
        """
        begin = time.thread_time()
        while time.thread_time() < begin + 0.03:
            pass
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())])
        """,
    )
    echo = """
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())])
        """
    write_python(models, "stuck", f"max_batch_size: 8 {ends[0]} {ends[1]}", echo)
    write_python(models, "broken", f"max_batch_size: 8 {ends[0]} {ends[1]}", 'raise ValueError("no")')
    write_identity(
        models, "counted", "FP32", 1, batch=4, extra="sequence_batching { max_sequence_idle_microseconds: 60000000 }"
    )
    write_scripted(models, "llm", {"reply": "one two three four five", "chat_template": "{{ messages[0].content }}"})
    flags = ["--cache-config=local,size=1000000", "--model-control-mode=explicit", "--load-model=*"]
    with ConchProcess(models, *flags, log=folder / "log") as server:
        yield Logged(server, folder / "go")


def increasing(row: dict[str, Any], kind: str) -> bool:
    times = [row[column.name] for column in KINDS[kind] if column.meaning == TIME]
    if kind == "requests":
        times = times[:-2]
    return all(times) and times == sorted(times)


def test_a_request_and_its_batch(logged: Logged) -> None:
    assert logged.infer("free", 1, 2, 3, id="the-first") == 200
    log = logged.log()
    number = log.find("the-first")
    (request,) = [row for row in logged.rows("requests", log=log) if row["number"] == number]
    assert (request["model"], request["version"], request["outcome"], request["reason"]) == ("free", 1, "ok", "")
    assert (request["batch_size"], request["input_bytes"], request["output_bytes"]) == (1, 12, 12)
    assert request["shape"] == "INPUT0 FP32 [1,3]"
    assert increasing(request, "requests")
    (batch,) = [row for row in logged.rows("batches", log=log) if row["number"] == request["batch"]]
    assert (batch["model"], batch["members"], batch["size"], batch["why_now"]) == ("free", 1, 1, "single")
    assert (batch["instance"], batch["ahead"], batch["failed"], batch["waiting"]) == ("free_0", 0, 0, 0)
    assert increasing(batch, "batches")
    assert batch["started"] == request["started"]
    assert 0 < log.monotonic_ns - request["received"] < 600e9
    assert abs(log.wall(log.monotonic_ns) - time.time_ns()) < 600e9
    assert "free" in log.server["models"]


def test_why_a_batch_runs_now(logged: Logged) -> None:
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda value: logged.infer("batched", value), [1, 2])) == [200, 200]
    (batch,) = logged.rows("batches", "batched")
    assert (batch["members"], batch["size"], batch["why_now"]) == (2, 2, "preferred")
    assert {row["batch"] for row in logged.rows("requests", "batched")} == {batch["number"]}
    assert logged.infer("delayed", 1) == 200
    (late,) = logged.rows("batches", "delayed")
    assert (late["members"], late["why_now"]) == (1, "delay over")
    assert late["formed"] - logged.rows("requests", "delayed")[0]["queued"] >= 1_000_000


def test_steps_and_calls_have_the_number_of_their_request(logged: Logged) -> None:
    assert logged.infer("chain", 1, id="whole") == 200
    log = logged.log()
    whole = log.find("whole")
    steps = [row for row in logged.rows("requests", log=log) if row["parent"] == whole]
    assert [row["model"] for row in steps] == ["stage", "free"]
    (ensemble,) = [row for row in logged.rows("requests", log=log) if row["number"] == whole]
    assert (ensemble["model"], ensemble["batch"], ensemble["parent"]) == ("chain", 0, 0)
    assert logged.infer("caller", 1) == 200
    (outer,) = logged.rows("requests", "caller")
    (inner,) = [row for row in logged.rows("requests", "stage") if row["parent"] == outer["number"]]
    assert outer["started"] < inner["received"] < inner["done"] < outer["done"]


def test_hits_of_the_cache(logged: Logged) -> None:
    assert [logged.infer("cached", 7), logged.infer("cached", 7)] == [200, 200]
    missed, hit = logged.rows("requests", "cached")
    assert (missed["cache_hit"], hit["cache_hit"]) == (0, 1)
    assert missed["batch"]
    assert not hit["batch"]


def test_the_processor_time_of_an_execution(logged: Logged) -> None:
    """A model that computes for a while, in its process: the first execution of a thread is measured, too."""
    assert logged.infer("busy", 1) == 200
    (batch,) = logged.rows("batches", "busy")
    assert 20_000_000 <= batch["cpu_ns"] <= batch["released"] - batch["formed"]
    assert batch["cpu_wait_ns"] <= batch["released"] - batch["formed"]


def test_sequences(logged: Logged) -> None:
    for number, flags in enumerate([{"sequence_start": True}, {"sequence_end": True}]):
        assert logged.infer("counted", number, parameters={"sequence_id": 5, **flags}) == 200
    rows = logged.rows("requests", "counted")
    assert len({row["correlation"] for row in rows}) == 1
    assert rows[0]["correlation"]
    assert {row["why_now"] for row in logged.rows("batches", "counted")} == {"sequence"}


def test_a_generation(logged: Logged) -> None:
    body = {"model": "llm", "messages": [{"role": "user", "content": "say it"}]}
    assert call(f"http://{logged.server.http}/v1/chat/completions", body)[0] == 200
    (row,) = logged.rows("requests", "llm")
    assert row["completion_tokens"] > 0
    assert row["prompt_tokens"] > 0
    assert row["received"] < row["first_token"] <= row["done"]
    assert row["outcome"] == "ok"
    steps = logged.rows("steps", "llm")
    assert sum(step["decode_tokens"] for step in steps) == row["completion_tokens"]
    assert sum(step["prefill_tokens"] for step in steps) == row["prompt_tokens"]
    assert all(row["received"] < step["started"] <= step["ended"] <= row["done"] for step in steps)
    (exchange,) = [call for call in logged.rows("exchanges") if call["request"] == row["number"]]
    assert exchange["protocol"] == "openai"
    assert increasing(exchange, "exchanges")


def test_failures_and_rejections_name_their_error(logged: Logged) -> None:
    assert logged.infer("broken", 1) == 500
    (failed,) = logged.rows("requests", "broken")
    assert failed["outcome"] == "error"
    assert failed["reason"] == "BackendError"


def test_what_has_not_ended_is_in_the_log(logged: Logged) -> None:
    """A model that is busy, a request that waits, and one more that is refused."""
    with ThreadPoolExecutor(2) as pool:
        results = [pool.submit(logged.infer, "full", 1)]
        logged.until("batches", "full", len)
        results.append(pool.submit(logged.infer, "full", 2))
        rows = logged.until("requests", "full", lambda rows: len(rows) == 2)
        assert logged.infer("full", 3) == 503
        (batch,) = logged.rows("batches", "full")
        assert (batch["released"], batch["infer_done"]) == (0, 0)
        waiting, running = sorted(rows, key=lambda row: row["batch"])
        assert {row["outcome"] for row in rows} == {"unfinished"}
        assert running["batch"] == batch["number"]
        assert (waiting["batch"], waiting["started"], waiting["done"]) == (0, 0, 0)
        assert waiting["queued"] > running["started"] > 0
        (refused,) = logged.until("requests", "full", lambda rows: len(rows) == 3)[:1]
        assert (refused["outcome"], refused["reason"], refused["batch"]) == ("rejected", "QueueFull", 0)
        logged.go.touch()
        assert [result.result() for result in results] == [200, 200]
    assert {row["outcome"] for row in logged.rows("requests", "full")} == {"ok", "rejected"}


def exchange_of(logged: Logged, text: str) -> dict[str, Any]:
    """The row of the call whose request has an id, when it is there."""
    end = time.monotonic() + 60
    while True:
        log = logged.log()
        numbers = [row["number"] for row in logged.rows("requests", log=log)]
        if text in log.names and (number := log.find(text)) in numbers:
            exchanges = [row for row in logged.rows("exchanges", log=log) if row["request"] == number]
            if exchanges:
                return exchanges[0]
        assert time.monotonic() < end
        time.sleep(0.02)


def test_an_exchange_over_http(logged: Logged) -> None:
    body = {"inputs": [{"name": "INPUT0", "shape": [1, 1], "datatype": "FP32", "data": [1]}]}
    parent = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"
    assert call(f"{logged.url}/models/free/infer", body, X_Request_Id="called", traceparent=parent)[0] == 200
    row = exchange_of(logged, "called")
    assert exchange_of(logged, "ab" * 16) == row
    assert (row["protocol"], row["status"]) == ("http", 200)
    assert row["bytes_in"] == len(json.dumps(body))
    assert row["bytes_out"] > 0
    assert increasing(row, "exchanges")


def test_a_client_that_is_slow_to_send_and_to_read(logged: Logged) -> None:
    """Head and body come apart; the answer is larger than what the sockets hold, and is read later."""
    values = b"[" + b"0.123456," * 1_999_999 + b"1]"
    body = b'{"id":"slow","inputs":[{"name":"INPUT0","shape":[1,2000000],"datatype":"FP32","data":%b}]}' % values
    host, _, port = logged.server.http.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as client:
        head = b"POST /v2/models/free/infer HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: "
        client.sendall(head + b"%d\r\n" % len(body))
        before = time.monotonic_ns()
        client.sendall(b"\r\n" + body[:100])
        logged.log()
        between = time.monotonic_ns()
        client.sendall(body[100:])
        logged.until("requests", "free", lambda rows: any(row["input_bytes"] == 8_000_000 for row in rows))
        read = time.monotonic_ns()
        while client.recv(1 << 20):
            pass
    row = exchange_of(logged, "slow")
    assert increasing(row, "exchanges")
    assert row["first_byte"] < between < row["body_done"]
    assert row["received"] > before
    assert row["drained"] > read


def test_exchanges_over_grpc(logged: Logged) -> None:
    with triton.InferenceServerClient(logged.server.grpc) as client:
        tensor = triton.InferInput("INPUT0", [1, 1], "FP32")
        tensor.set_data_from_numpy(np.ones((1, 1), np.float32))
        client.infer("free", [tensor], request_id="by-grpc", headers={"x-request-id": "header"})
        row = exchange_of(logged, "by-grpc")
        assert exchange_of(logged, "header") == row
        assert (row["protocol"], row["status"]) == ("grpc", 0)
        assert increasing(row, "exchanges")
        answers: SimpleQueue[Any] = SimpleQueue()
        client.start_stream(lambda result, error: answers.put(error or result))
        client.async_stream_infer("free", [tensor], request_id="streamed")
        assert answers.get(timeout=60).get_response().id == "streamed"
        row = exchange_of(logged, "streamed")
        assert increasing(row, "exchanges")
        with pytest.raises(InferenceServerException):
            client.infer("broken", [tensor], request_id="failing")
        assert exchange_of(logged, "failing")["status"] == 13


def test_changes_of_models(logged: Logged) -> None:
    repository = f"{logged.url}/repository/models"
    assert call(f"{repository}/spare/unload", {})[0] == 200
    assert call(f"{repository}/spare/load", {})[0] == 200
    assert call(f"{repository}/missing/load", {})[0] == 500
    rows = logged.rows("changes", "spare")
    assert [(row["change"], row["failed"]) for row in rows] == [("load", 0), ("unload", 0), ("load", 0)]
    assert all(0 < row["started"] <= row["ended"] for row in rows)
    (failed,) = logged.rows("changes", "missing")
    assert (failed["change"], failed["failed"], failed["detail"]) == ("load", 1, "NotFound")


def test_processes_that_stop_and_die(logged: Logged) -> None:
    (first,) = logged.rows("instances", "stuck")
    assert (first["change"], first["instance"]) == ("up", "stuck_0")
    with ThreadPoolExecutor(1) as pool:
        os.kill(first["pid"], signal.SIGSTOP)
        result = pool.submit(logged.infer, "stuck", 1)
        logged.until("instances", "stuck", lambda rows: rows[-1]["change"] == "stopped")
        os.kill(first["pid"], signal.SIGCONT)
        assert result.result() == 200
        logged.until("instances", "stuck", lambda rows: rows[-1]["change"] == "continued")
        os.kill(first["pid"], signal.SIGKILL)
        rows = logged.until("instances", "stuck", lambda rows: rows[-1]["change"] == "up" and len(rows) > 3)
    assert [row["change"] for row in rows] == ["up", "stopped", "continued", "down", "up"]
    assert rows[-1]["pid"] not in (0, first["pid"])
    assert [row["time"] for row in rows] == sorted(row["time"] for row in rows)


def test_a_blocked_event_loop(logged: Logged) -> None:
    """As if the system ran something else: the server's process is stopped for a while."""
    os.kill(logged.server.process.pid, signal.SIGSTOP)
    stopped = time.monotonic_ns()
    time.sleep(0.2)
    os.kill(logged.server.process.pid, signal.SIGCONT)
    logged.until(
        "pauses",
        "",
        lambda rows: any(
            row["kind"] == "stall" and row["ended"] > stopped and row["ended"] - row["started"] > 100_000_000
            for row in rows
        ),
    )


def test_rows_are_counted(logged: Logged) -> None:
    values = {
        (sample.name, sample.labels["kind"]): sample.value
        for family in text_string_to_metric_families(logged.server.metrics())
        for sample in family.samples
        if sample.name.startswith("conch_event_log")
    }
    assert values["conch_event_log_rows_total", "requests"] >= len(logged.rows("requests")) > 0
    assert values["conch_event_log_overwritten_total", "requests"] == 0


def test_old_rows_are_left_out(logged: Logged) -> None:
    assert logged.infer("free", 1) == 200
    assert len(logged.log().requests)
    assert not np.any(logged.log(last=0).requests["done"])


def test_a_query_that_is_not_valid(logged: Logged) -> None:
    for query, text in {"last=x": b"last=x is not a number", "last=-1": b"last=-1", "first=3": b"'first'"}.items():
        status, body = call(f"{logged.url}/debug/events?{query}")
        assert status == 400
        assert text in body


def test_clients_elsewhere_need_a_key_or_a_flag(tmp_path: Path) -> None:
    """A page of another site is refused as a client on another machine is; a key needs the scope."""
    write_identity(tmp_path / "models", "free", "FP32", -1)
    keys = tmp_path / "keys"
    keys.write_text("tool debug key-d\nmanager manage,infer,metrics key-m\n")
    keys.chmod(0o600)
    with ConchProcess(tmp_path / "models", "--debug-remote=false", log=tmp_path / "open") as server:
        url = f"http://{server.http}/v2/debug/events"
        assert call(url)[0] == 200
        status, body = call(url, Host="server.example.com")
        assert status == 403
        assert b"--debug-remote" in body
    with ConchProcess(tmp_path / "models", f"--api-key-file={keys}", log=tmp_path / "keyed") as server:
        url = f"http://{server.http}/v2/debug/events"
        assert call(url)[0] == 401
        assert call(url, Authorization="Bearer key-m")[0] == 403
        assert call(url, Authorization="Bearer key-d", Host="server.example.com")[0] == 200


def test_a_server_without_the_log(tmp_path: Path) -> None:
    write_identity(tmp_path / "models", "free", "FP32", -1, batch=8)
    with ConchProcess(tmp_path / "models", "--event-log-bytes=0", log=tmp_path / "log") as server:
        logged = Logged(server, tmp_path)
        assert logged.infer("free", 1) == 200
        status, body = call(f"{logged.url}/debug/events")
        assert status == 503
        assert b"--event-log-bytes=0" in body


def test_few_clients_read_the_log_at_the_same_time(logged: Logged) -> None:
    clients = [http.client.HTTPConnection(logged.server.http, timeout=60) for _ in range(32)]
    for client in clients:
        client.request("GET", "/v2/health/live")
        client.getresponse().read()
    pid = logged.server.process.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        for client in clients:
            client.request("GET", "/v2/debug/events?last=1")
    finally:
        os.kill(pid, signal.SIGCONT)
    answers = [client.getresponse() for client in clients]
    assert {answer.status for answer in answers} == {200, 503}
    assert all(answer.headers["Retry-After"] for answer in answers if answer.status == 503)
    for client in clients:
        client.close()
    assert logged.log().names
