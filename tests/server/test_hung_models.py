"""Models whose processes stop in the middle of their work: named in the metrics, and replaced where that is asked for.

SIGSTOP is what a hang looks like from outside: the process lives, and answers nothing.
"""

import json
import os
import select
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from conch.measure.why.answer import answer as explanation_of
from conch.measure.why.source import fetch_log
from tests.processes import command_lines
from tests.support.models import tensor, write_python, write_scripted
from tests.support.server_process import ConchProcess

TENSORS = f"input {tensor('INPUT0', 'FP32', 1)} output {tensor('OUTPUT0', 'FP32', 1)}"
# Hangs in the middle of an execution: negative numbers stop the process, or wait for what never comes.
HANGS = """
import os, signal, threading
value = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
if value[0] == -1:
    os.kill(os.getpid(), signal.SIGSTOP)
if value[0] == -2:
    threading.Event().wait()
return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", value)])
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    root = tmp_path_factory.mktemp("models")
    write_python(root, "hangs", TENSORS, HANGS)
    write_scripted(root, "llm", {"reply": "one two three", "step_ms": 200})
    with ConchProcess(root, "--hang-timeout-secs=2", log=tmp_path_factory.mktemp("log") / "log") as process:
        yield process


def ask(server: ConchProcess, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(f"http://{server.http}{path}", json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def infer(server: ConchProcess, value: float, id_: str = "") -> tuple[int, dict[str, Any]]:
    inputs = [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [value]}]
    return ask(server, "/v2/models/hangs/infer", {"id": id_, "inputs": inputs})


def complete(server: ConchProcess) -> tuple[int, dict[str, Any]]:
    return ask(server, "/v1/completions", {"model": "llm", "prompt": "count", "max_tokens": 16})


def engine(server: ConchProcess) -> int:
    """Return the id of the engine's process."""
    (process,) = [
        process
        for process, line in command_lines(server.process.pid)
        if any(word.endswith("engine_main.py") for word in line)
    ]
    return process.pid


def test_hung_processes_are_replaced_and_their_requests_fail(server: ConchProcess) -> None:
    assert infer(server, 1.0)[0] == 200
    assert complete(server)[0] == 200
    os.kill(engine(server), signal.SIGSTOP)
    completion: list[tuple[int, dict[str, Any]]] = []
    thread = threading.Thread(target=lambda: completion.append(complete(server)))
    thread.start()
    status, answer = infer(server, -1.0)
    thread.join()
    assert status == 500
    assert "It was killed: it made no progress for" in answer["error"]
    assert "(--hang-timeout-secs=2) while this request was being executed" in answer["error"]
    status, answer = completion[0]
    assert status == 500
    assert "engine 'llm' was killed: it made no progress for" in answer["error"]["message"]
    server.until_logged("instance 'hangs_0' of model 'hangs' has requests, but it made no progress for")
    server.until_logged("engine 'llm' of model 'llm' has requests, but it made no progress for")
    server.until("/v2/models/hangs/ready")
    server.until("/v2/models/llm/ready")
    assert infer(server, 2.0)[0] == 200
    assert complete(server)[0] == 200


def test_the_event_log_says_that_a_process_hung(server: ConchProcess) -> None:
    assert infer(server, 3.0)[0] == 200
    assert infer(server, -2.0, "hung")[0] == 500
    explanation = explanation_of(fetch_log(server.http, 600), "hung")
    assert explanation.causes()[0].label == "no progress"
    assert 'the process of "hangs" making no progress' in explanation.sentences[0]
    assert "find where it hangs; --hang-timeout-secs replaces such a process" in explanation.sentences[0]


def test_prompts_that_an_engine_does_not_read_are_bounded(tmp_path: Path) -> None:
    """Those beyond the bound are refused, and nothing is left of any when their clients have gone."""
    write_scripted(tmp_path / "models", "llm", {"context_length": 10**8})
    body = json.dumps({"model": "llm", "prompt": "x" * 2**23}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with ConchProcess(tmp_path / "models", log=tmp_path / "log") as server:
        process = engine(server)
        os.kill(process, signal.SIGSTOP)
        with ExitStack() as stack:
            clients = []
            for _ in range(60):
                client = stack.enter_context(socket.create_connection(("127.0.0.1", server.ports["http"]), timeout=60))
                client.sendall(head + body)
                clients.append(client)
            (refused, *_), _, _ = select.select(clients, [], [], 60)
            answer = refused.recv(65_536)
            assert answer.startswith(b"HTTP/1.1 503")
            assert b"Retry-After: 1" in answer
            assert b"has not read 256 MiB of other prompts" in answer
        deadline = time.monotonic() + 60
        while "conch_request_memory_used_bytes 0" not in server.metrics().splitlines():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        os.kill(process, signal.SIGCONT)
