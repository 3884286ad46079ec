"""Deadlines over HTTP and gRPC: what cannot be met is refused at once, what has passed is not executed.

And the shares of tenants whose requests wait for the same model.
"""

import asyncio
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.server.load import until
from tests.support.models import tensor, write_ensemble, write_python, write_scripted
from tests.support.server_process import ConchProcess

NUMBERS = f"input {tensor('INPUT0', 'INT32', -1)} output {tensor('OUTPUT0', 'INT32', -1)}"
LONG_AGO = "1970-01-01T00:00:00Z"
TIMEOUT_S = 60


class Models:
    """A server with models that write down what they execute, and wait while their gate is shut."""

    def __init__(self, folder: Path, server: ConchProcess) -> None:
        self.folder = folder
        self.server = server

    def ask(self, model: str, number: int, deadline: str = "", tenant: str = "") -> tuple[int, str, str | None]:
        """Send a number over HTTP; return status, error and Retry-After."""
        given = {"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [number]}
        headers = {"X-Tenant": tenant}
        if deadline:
            headers["X-Request-Deadline"] = deadline
        url = f"http://{self.server.http}/v2/models/{model}/infer"
        request = Request(url, json.dumps({"inputs": [given]}).encode(), headers)
        try:
            with urlopen(request, timeout=TIMEOUT_S) as response:
                response.read()
                return response.status, "", None
        except HTTPError as error:
            return error.code, json.load(error)["error"], error.headers.get("Retry-After")

    def call(self, model: str, number: int, timeout_s: float = TIMEOUT_S, deadline: str = "") -> tuple[str, str]:
        """Send a number over gRPC; return the name of the status, and its text."""
        request = service_pb2.ModelInferRequest(model_name=model)
        request.inputs.add(name="INPUT0", datatype="INT32", shape=[1]).contents.int_contents.append(number)
        metadata = [("x-request-deadline", deadline)] if deadline else []
        with grpc.insecure_channel(self.server.grpc) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            try:
                stub.ModelInfer(request, timeout=timeout_s, metadata=metadata)
            except grpc.RpcError as error:
                return error.code().name, error.details()
        return "OK", ""

    def executed(self, model: str) -> list[int]:
        path = self.folder / f"{model}.executed"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def misses(self, model: str, stage: str) -> int:
        name = f'conch_deadline_misses_total{{model="{model}",stage="{stage}",version="1"}} '
        lines = [line for line in self.server.metrics().splitlines() if line.startswith(name)]
        return int(lines[0].removeprefix(name)) if lines else 0

    @contextmanager
    def shut(self, model: str) -> Iterator[None]:
        gate = self.folder / f"{model}.shut"
        gate.touch()
        try:
            yield
        finally:
            gate.unlink()


def write_counting(folder: Path, name: str, config: str) -> None:
    body = f"""
    numbers = request.inputs()[0].as_numpy()
    with open({str(folder / name) + ".executed"!r}, "a") as book:
        book.write(str(numbers[0]) + "\\n")
    while os.path.exists({str(folder / name) + ".shut"!r}):
        time.sleep(0.002)
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", numbers)])
    """
    write_python(folder / "models", name, f"{NUMBERS} {config}", body)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    folder = tmp_path_factory.mktemp("deadlines")
    for name in ("plain", "slow", "shared", "first", "last"):
        write_counting(folder, name, "dynamic_batching { default_queue_policy { max_queue_size: 12 } }")
    write_counting(folder, "long", "")
    ends = [f"input {tensor('INPUT0', 'INT32', -1)}", f"output {tensor('OUTPUT0', 'INT32', -1)}"]
    step = "first", {"INPUT0": "INPUT0"}, {"OUTPUT0": "middle"}
    write_ensemble(folder / "models", "chain", *ends, step, ("last", {"INPUT0": "middle"}, {"OUTPUT0": "OUTPUT0"}))
    write_scripted(folder / "models", "llm", {"reply": "word " * 2000, "step_ms": 20})
    limits = folder / "limits.yaml"
    limits.write_text("limits:\n  - {tenant: important, weight: 2}\n  - {model: other, tenant: flood, weight: 9}\n")
    flags = [f"--limits-file={limits}", "--limits-tenant-header=x-tenant"]
    with ConchProcess(folder / "models", *flags, log=folder / "log") as server:
        yield Models(folder, server)


def test_a_deadline_that_has_passed(models: Models) -> None:
    for model in ("plain", "chain"):
        status, text, retry_after = models.ask(model, 1, LONG_AGO)
        assert (status, retry_after) == (504, None)
        assert "the deadline of the request passed" in text
        assert models.misses(model, "arrival") == 1
    status, text = models.call("plain", 1, deadline="0ms")
    assert status == "DEADLINE_EXCEEDED"
    assert "the deadline of the request passed" in text
    assert models.executed("plain") == models.executed("first") == []


@pytest.mark.parametrize("deadline", ["30s", "2001-01-01T00:00:30Z; now=2001-01-01T00:00:00Z", "24h; first-token=1h"])
def test_a_deadline_that_is_met(models: Models, deadline: str) -> None:
    assert models.ask("chain", 2, deadline)[0] == 200
    assert models.call("chain", 2, deadline=deadline) == ("OK", "")


@pytest.mark.parametrize("deadline", ["soon", "25h", "-1s", "9" * 300, "2001-01-01T00:00:00"])
def test_what_is_not_a_deadline_is_refused(models: Models, deadline: str) -> None:
    status, text, _ = models.ask("plain", 3, deadline)
    assert status == 400
    assert "X-Request-Deadline" in text
    assert models.call("plain", 3, deadline=deadline) == ("INVALID_ARGUMENT", text)


def test_an_absurdly_long_deadline_of_grpc_is_none(models: Models) -> None:
    assert models.call("plain", 4, timeout_s=10 * 365 * 86_400.0) == ("OK", "")


async def test_what_passes_in_the_queue_is_not_executed(models: Models) -> None:
    began = models.executed("slow")
    with models.shut("slow"):
        blocking = asyncio.create_task(asyncio.to_thread(models.ask, "slow", 10, ""))
        await until(lambda: models.executed("slow") == [*began, 10])
        status, text, _ = await asyncio.to_thread(models.ask, "slow", 11, "200ms")
        assert status == 504
        assert "could no longer be met" in text
        status, _ = await asyncio.to_thread(models.call, "slow", 12, 0.2)
        assert status == "DEADLINE_EXCEEDED"
        status, text, _ = await asyncio.to_thread(models.ask, "chain", 13, LONG_AGO)
        assert status == 504
    assert (await blocking)[0] == 200
    assert models.executed("slow") == [*began, 10]


async def test_what_the_queue_makes_impossible_is_refused_at_once(models: Models) -> None:
    """One slow execution is evidence: what would wait behind another such one is refused before it is queued."""

    def asked(number: int, deadline: str = "") -> "asyncio.Task[Any]":
        return asyncio.create_task(asyncio.to_thread(models.ask, "slow", number, deadline))

    assert (await asked(20, "0s"))[0] == 504  # begins to measure
    status, number = 0, 20
    async with asyncio.timeout(TIMEOUT_S):
        while status != 503:  # a busy machine may let the evidence grow old
            number += 2
            with models.shut("slow"):
                slow = asked(number)
                await until(lambda number=number: number in models.executed("slow"))  # type: ignore[misc]
                await asyncio.sleep(0.5)
            assert (await slow)[0] == 200
            with models.shut("slow"):
                slow = asked(number + 1)
                await until(lambda number=number: number + 1 in models.executed("slow"))  # type: ignore[misc]
                status, text, _ = await asked(-1, "100ms")
            assert (await slow)[0] == 200
            assert status in (503, 504)
    assert "model 'slow' would take about" in text
    assert models.misses("slow", "estimate") == 1
    assert -1 not in models.executed("slow")


async def test_a_timeout_shorter_than_the_execution_is_exceeded_as_in_triton(models: Models) -> None:
    """Triton's clients look for gRPC's own words; here the server can know it before the client does."""
    for number in range(3):  # evidence for the estimate
        with models.shut("long"):
            slow = asyncio.create_task(asyncio.to_thread(models.ask, "long", number, "30s"))
            await until(lambda number=number: number in models.executed("long"))  # type: ignore[misc]
            await asyncio.sleep(0.5)
        assert (await slow)[0] == 200
    status, text = await asyncio.to_thread(models.call, "long", 9, 0.1)
    assert (status, text.partition(":")[0]) == ("DEADLINE_EXCEEDED", "Deadline Exceeded")
    assert 9 not in models.executed("long")


async def test_tenants_share_a_queue_by_their_weights(models: Models) -> None:
    """The one that came first has filled the queue, and others get their shares nevertheless."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(32))

    def asked(number: int, tenant: str) -> "asyncio.Task[Any]":
        return asyncio.create_task(asyncio.to_thread(models.ask, "shared", number, "", tenant))

    with models.shut("shared"):
        answers = [asked(0, "flood")]
        await until(lambda: models.executed("shared") == [0])
        answers += [asked(number, "flood") for number in range(1, 13)]
        async with asyncio.timeout(TIMEOUT_S):
            while 'pending_request_count{model="shared",version="1"} 12' not in models.server.metrics():
                await asyncio.sleep(0.01)
        status, text, _ = await asked(99, "flood")
        assert (status, text) == (503, "[request id: <id_unknown>] Exceeds maximum queue size")
        for number in range(101, 107):  # they take the places of the newest six of the flood
            answers.append(asked(number, "important"))
            evicted = number - 100
            await until(lambda evicted=evicted: sum(answer.done() for answer in answers) == evicted)  # type: ignore[misc]
    statuses = sorted([(await answer)[0] for answer in answers])
    assert statuses == [200] * 13 + [503] * 6
    order = "".join("i" if number > 100 else "f" for number in models.executed("shared"))
    assert order == "f" + "fii" * 3 + "fff"


def complete(models: Models, deadline: str, *, stream: bool = False) -> tuple[int, str]:
    """Ask the language model, whose answer takes 40 seconds; return status and body."""
    body = json.dumps({"model": "llm", "prompt": "Hello", "stream": stream, "max_tokens": 2000}).encode()
    headers = {"X-Request-Deadline": deadline, "Content-Type": "application/json"}
    request = Request(f"http://{models.server.http}/v1/completions", body, headers)
    try:
        with urlopen(request, timeout=TIMEOUT_S) as response:
            return response.status, response.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.parametrize("deadline", ["0s", f"first-token={LONG_AGO}", f"30s; first-token={LONG_AGO}"])
def test_a_generation_that_begins_too_late_is_refused(models: Models, deadline: str) -> None:
    missed = models.misses("llm", "arrival")
    status, body = complete(models, deadline)
    assert status == 504
    assert "the deadline of the request passed" in body
    assert models.misses("llm", "arrival") == missed + 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_generation_ends_with_its_deadline(models: Models, stream: bool) -> None:
    missed = models.misses("llm", "execution")
    status, body = complete(models, "1s; first-token=1m", stream=stream)
    assert status == 504 or (stream and '"text":"word' in body)
    assert "the deadline of the request passed before its end" in body
    assert models.misses("llm", "execution") == missed + 1
    running = 'vllm:num_requests_running{engine="0",model_name="llm",version="1"} 0'
    for _ in range(10 * TIMEOUT_S):
        if running in models.server.metrics():
            return
        time.sleep(0.1)
    pytest.fail("the engine still computes it")
