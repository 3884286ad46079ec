"""Sequences on a running server when things change: reload, unload, cancellation, clients that go away."""

import queue
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.support.models import tensor, write_python
from tests.support.server_process import ConchProcess

HOUR_US = 3_600_000_000  # so that no pause between two requests ends a sequence
# Adds up. Given a negative number it says so by a file `begun`, and waits until there is a file of the number's name.
ADD = """
value = int(request.inputs()[0].as_numpy().item())
if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
    self.sums[request.correlation_id()] = 0
if value < 0:
    open(os.path.join(pb_utils.get_model_dir(), "..", "begun"), "w").close()
while value < 0 and not os.path.exists(os.path.join(pb_utils.get_model_dir(), "..", str(value))):
    time.sleep(0.001)
self.sums[request.correlation_id()] += value
return pb_utils.InferenceResponse(
    [pb_utils.Tensor("OUTPUT", np.array([[self.sums[request.correlation_id()]]], np.int32))]
)
"""
SUMS = """
def initialize(self, args):
    self.sums = {}
"""


def config(candidates: int) -> str:
    return (
        f"max_batch_size: 4 input {tensor('INPUT', 'INT32', 1)} output {tensor('OUTPUT', 'INT32', 1)} "
        f"sequence_batching {{ max_sequence_idle_microseconds: {HOUR_US} oldest {{ "
        f"max_candidate_sequences: {candidates} }} }}"
    )


@pytest.fixture
def models(tmp_path: Path) -> Path:
    write_python(tmp_path / "models", "sum", config(1), ADD, more=SUMS)
    return tmp_path / "models"


@pytest.fixture
def conch(models: Path, tmp_path: Path) -> Iterator[ConchProcess]:
    flags = ["--model-control-mode=explicit", "--load-model=sum"]
    with ConchProcess(models, *flags, log=tmp_path / "log") as process:
        yield process


@pytest.fixture
def client(conch: ConchProcess) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(conch.grpc) as client:
        yield client


def given(value: int) -> list[triton.InferInput]:
    sent = triton.InferInput("INPUT", [1, 1], "INT32")
    sent.set_data_from_numpy(np.array([[value]], np.int32))
    return [sent]


def ask(client: triton.InferenceServerClient, value: int, **options: Any) -> int:
    return int(client.infer("sum", given(value), **options).as_numpy("OUTPUT").item())


class Later:
    """A request in flight, and its outcome."""

    def __init__(self, client: triton.InferenceServerClient, value: int, **options: Any) -> None:
        self.answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self.call = client.async_infer("sum", given(value), self._on_response, **options)

    def _on_response(self, result: Any, error: Any) -> None:
        self.answers.put((result, error))

    def value(self) -> int:
        result, error = self.answers.get(timeout=60)
        assert error is None, error
        return int(result.as_numpy("OUTPUT").item())

    def error(self) -> InferenceServerException:
        _, error = self.answers.get(timeout=60)
        assert error is not None
        return error


def metric(conch: ConchProcess, start: str) -> int:
    (line,) = [line for line in conch.metrics().splitlines() if line.startswith(start)]
    return int(line.rpartition(" ")[2])


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def until_pending(conch: ConchProcess, number: int) -> None:
    until(lambda: metric(conch, "nv_inference_pending_request_count") == number)


def until_begun(models: Path) -> None:
    until((models / "sum" / "begun").exists)


def test_a_reload_leaves_sequences_where_they_are_until_they_end(
    models: Path, client: triton.InferenceServerClient
) -> None:
    assert ask(client, 1, sequence_id=1, sequence_start=True) == 1
    write_python(models, "sum", config(2), ADD.replace("+= value", "+= 10 * value"), more=SUMS)
    client.load_model("sum")
    assert ask(client, 1, sequence_id=2, sequence_start=True, sequence_end=True) == 10
    assert ask(client, 1, sequence_id=1) == 2
    assert ask(client, 1, sequence_id=1, sequence_end=True) == 3
    with pytest.raises(InferenceServerException, match="must specify the START flag"):
        ask(client, 1, sequence_id=1)
    assert ask(client, 1, sequence_id=1, sequence_start=True) == 10


def test_a_new_version_leaves_sequences_to_the_one_they_began_with(
    models: Path, client: triton.InferenceServerClient
) -> None:
    write_python(models, "sum", config(2) + " version_policy { all { } }", ADD, more=SUMS)
    client.load_model("sum")
    assert ask(client, 1, sequence_id=1, sequence_start=True) == 1
    assert ask(client, 1, sequence_id=2, sequence_start=True, model_version="1") == 1
    shutil.copytree(models / "sum" / "1", models / "sum" / "2")
    source = models / "sum" / "2" / "model.py"
    source.write_text(source.read_text().replace("+= value", "+= 10 * value"))
    client.load_model("sum")
    assert ask(client, 1, sequence_id=3, sequence_start=True, sequence_end=True) == 10
    assert ask(client, 1, sequence_id=1, sequence_end=True) == 2
    assert ask(client, 1, sequence_id=2, sequence_end=True, model_version="1") == 2


def test_a_stop_waits_for_no_sequence_of_a_version_that_was_replaced(
    conch: ConchProcess, models: Path, client: triton.InferenceServerClient
) -> None:
    for source in (ADD, ADD + " "):
        write_python(models, "sum", config(2), source, more=SUMS)
        client.load_model("sum")
        assert ask(client, 1, sequence_id=1, sequence_start=True) == 1
        assert ask(client, 1, sequence_id=source.count(" "), sequence_start=True) == 1
    assert conch.stop() == 0  # status 1 would say that the time to exit was over


def test_an_unload_answers_what_it_has_taken(
    conch: ConchProcess, models: Path, client: triton.InferenceServerClient
) -> None:
    requests = [Later(client, -1, sequence_id=1, sequence_start=True)]
    until_begun(models)
    requests += [
        Later(client, 5, sequence_id=1),
        Later(client, 6, sequence_id=2, sequence_start=True, sequence_end=True),
    ]
    until_pending(conch, 2)
    client.unload_model("sum")
    with pytest.raises(InferenceServerException, match="has no available versions"):
        ask(client, 1, sequence_id=1)
    (models / "sum" / "-1").touch()
    assert [request.value() for request in requests] == [-1, 4, 6]


def test_cancelling_a_request_cancels_its_sequence_and_lets_the_next_one_in(
    conch: ConchProcess, models: Path, client: triton.InferenceServerClient
) -> None:
    first = Later(client, -1, sequence_id=1, sequence_start=True)
    until_begun(models)
    cancelled, behind = Later(client, 1, sequence_id=1), Later(client, 1, sequence_id=1)
    other = Later(client, 7, sequence_id=2, sequence_start=True, sequence_end=True)
    until_pending(conch, 3)
    cancelled.call.cancel()
    assert behind.error().status() == "StatusCode.CANCELLED"
    (models / "sum" / "-1").touch()
    assert first.value() == -1
    assert other.value() == 7
    assert metric(conch, 'nv_inference_request_failure{model="sum",reason="CANCELED"') == 2
    with pytest.raises(InferenceServerException, match="was ended by the cancellation of a request"):
        ask(client, 1, sequence_id=1)


def test_a_client_that_hangs_up_ends_its_sequence(
    conch: ConchProcess, models: Path, client: triton.InferenceServerClient
) -> None:
    body = (
        b'{"inputs":[{"name":"INPUT","shape":[1,1],"datatype":"INT32","data":[-1]}],"parameters":{"sequence_id":1,%s}}'
    )
    body %= b'"sequence_start":true'
    with socket.create_connection(conch.http.split(":")) as connection:
        connection.sendall(
            b"POST /v2/models/sum/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        until_begun(models)
        other = Later(client, 7, sequence_id=2, sequence_start=True, sequence_end=True)
        until_pending(conch, 1)
    until(lambda: metric(conch, 'nv_inference_request_failure{model="sum",reason="CANCELED"') == 1)
    (models / "sum" / "-1").touch()
    assert other.value() == 7


def test_counters_of_a_sequence_model_add_up(conch: ConchProcess, client: triton.InferenceServerClient) -> None:
    for position in range(4):
        ask(client, 1, sequence_id=1, sequence_start=position == 0, sequence_end=position == 3)
    with pytest.raises(InferenceServerException):
        ask(client, 1, sequence_id=1)
    (model,) = client.get_inference_statistics("sum").model_stats
    assert (model.inference_count, model.execution_count, model.inference_stats.success.count) == (4, 4, 4)
    assert model.inference_stats.fail.count == 0
    assert metric(conch, "nv_inference_request_success") == 4
    assert metric(conch, "nv_inference_pending_request_count") == 0
