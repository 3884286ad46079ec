"""`conch why` of a real server, whose requests are made slow for known reasons."""

import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from conch.domain.causes.explain import Explainer
from conch.domain.events.log import EventLog
from conch.measure.why.source import fetch_log
from tests.support.models import tensor, write_ensemble, write_python
from tests.support.server_process import ConchProcess

INPUT, OUTPUT = "input " + tensor("WORK", "UINT8", -1), "output " + tensor("OUT", "UINT8", 1)
TENSORS = f"max_batch_size: 4 {INPUT} {OUTPUT} "
# Waits for a file if the first byte says so.
WAIT = """
work = pb_utils.get_input_tensor_by_name(request, "WORK").as_numpy().reshape(-1)
while work[0] and not os.path.exists("{go}"):
    time.sleep(0.005)
return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", work[:1].reshape(1, 1))])
"""
BLS = """
work = pb_utils.get_input_tensor_by_name(request, "WORK")
answer = pb_utils.InferenceRequest(model_name="work", inputs=[work], requested_output_names=["OUT"]).exec()
return pb_utils.InferenceResponse([pb_utils.get_output_tensor_by_name(answer, "OUT")])
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    models = tmp_path_factory.mktemp("models")
    write_python(models, "work", TENSORS, WAIT.format(go=models.parent / "go"))
    delay = "dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 100000 }"
    write_python(models, "batcher", TENSORS + delay, WAIT)
    write_python(models, "caller", TENSORS, BLS)
    write_ensemble(models, "pipeline", f"max_batch_size: 4 {INPUT}", OUTPUT, ("work", {"WORK": "WORK"}, {"OUT": "OUT"}))
    with ConchProcess(models, log=models.parent / "log") as process:
        yield process


def ask(server: ConchProcess, model: str, id_: str = "", waits: int = 0, size: int = 10) -> None:
    """Send a request of `size` bytes."""
    data = [waits, *([0] * (size - 1))]
    document = {"id": id_, "inputs": [{"name": "WORK", "datatype": "UINT8", "shape": [1, size], "data": data}]}
    url = f"http://{server.http}/v2/models/{model}/infer"
    with urllib.request.urlopen(url, json.dumps(document).encode(), timeout=60) as response:
        response.read()


@contextmanager
def waiting(server: ConchProcess, id_: str, size: int = 10) -> Iterator[None]:
    """A request that is executed within the block, and ends with it."""
    go = server.log.parent / "go"
    go.unlink(missing_ok=True)
    thread = threading.Thread(target=ask, args=(server, "work", id_, 1, size))
    thread.start()
    try:
        until(server, id_, "started")
        yield
    finally:
        go.touch()
        thread.join()


def log_of(server: ConchProcess) -> EventLog:
    """The event log now."""
    return fetch_log(server.http, 600)


def causes(server: ConchProcess, id_: str) -> dict[tuple[str, str], int]:
    """(cause, model) → ns of a request, whose parts have no gaps."""
    log = log_of(server)
    request = Explainer(log).explain(log.find(id_))
    assert request is not None
    sums = dict[tuple[str, str], int]()
    for part in request.leaves():
        sums[part.cause, part.model] = sums.get((part.cause, part.model), 0) + part.ns
    assert sum(sums.values()) == request.ns
    return sums


def until(server: ConchProcess, id_: str, time_of: str) -> None:
    """Wait until a request has come to a time of its row."""
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        log = log_of(server)
        if id_ in log.names and log.requests[time_of][log.requests["number"] == log.find(id_)].max(initial=0):
            return
    raise AssertionError(f"{id_} has no time '{time_of}'")


def conch_why(server: ConchProcess, *arguments: str) -> str:
    """The output of the command."""
    command = [sys.executable, "-m", "conch", "why", *arguments, "--url", server.http]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_a_small_request_waits_behind_a_large_one(server: ConchProcess) -> None:
    for _ in range(12):
        ask(server, "work")
    small = threading.Thread(target=ask, args=(server, "work", "small"))
    with waiting(server, "large", 2000):
        small.start()
        until(server, "small", "queued")
    small.join()
    assert ("large", "work") in causes(server, "small")
    assert ("own_large", "work") in causes(server, "large")
    document = json.loads(conch_why(server, "small", "--json"))
    assert document["request"]["ids"] == ["small"]
    assert sum(cause["duration_ns"] for cause in document["request"]["causes"]) == document["request"]["duration_ns"]
    assert any("large), 2 kB of inputs" in text for text in document["behind"])
    assert "The slowest 1 % (" in conch_why(server, "p99", "--model", "work")


def test_a_request_without_batch_mates(server: ConchProcess) -> None:
    ask(server, "batcher", "alone")
    assert ("mates", "batcher") in causes(server, "alone")


def test_steps_and_calls_are_nested(server: ConchProcess) -> None:
    ask(server, "pipeline", "through-steps")
    assert ("compute", "work") in causes(server, "through-steps")
    ask(server, "caller", "through-a-call")
    assert ("compute", "work") in causes(server, "through-a-call")
    spans = json.loads(conch_why(server, "through-a-call", "--json"))["request"]["spans"]
    assert [(span["model"], span["depth"]) for span in spans] == [("caller", 0), ("work", 1)]


def test_a_request_that_has_not_ended(server: ConchProcess) -> None:
    with waiting(server, "running"):
        assert "(running), work version 1" in conch_why(server, "running")


def test_unknown_requests(server: ConchProcess) -> None:
    command = [sys.executable, "-m", "conch", "why", "nothing-like-it", "--url", server.http]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 1
    assert ended.stderr.startswith("conch why: no request 'nothing-like-it' in the event log: it holds ")


def test_a_file_of_the_log(server: ConchProcess, tmp_path: Path) -> None:
    ask(server, "work", "in-a-file")
    path = tmp_path / "log"
    with urllib.request.urlopen(f"http://{server.http}/v2/debug/events", timeout=60) as response:
        path.write_bytes(response.read())
    command: list[Any] = [sys.executable, "-m", "conch", "why", "in-a-file", "--file", path]
    assert "(in-a-file), work version 1" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
