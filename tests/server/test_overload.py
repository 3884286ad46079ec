"""More than the server can do: queues stay bounded, refusals are early and honest, and no work is done in vain."""

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from tests.server.load import Answer, Client, GrpcClient, HttpClient, Load, Lost, Refusal, until
from tests.support.models import tensor, write_ensemble, write_python
from tests.support.server_process import ConchProcess

NUMBERS = f"input {tensor('INPUT0', 'INT32', -1)} output {tensor('OUTPUT0', 'INT32', -1)}"
MAX_QUEUE = 6
BOUNDED = f"max_queue_size: {MAX_QUEUE}"
TIMEOUT_OVERRIDE = "allow_timeout_override: true"


def batching(policy: str) -> str:
    return f"dynamic_batching {{ default_queue_policy {{ {policy} }} }}"


class Bench:
    """A server with models that write down what they execute, and execute nothing while their gate is shut."""

    def __init__(self, folder: Path, server: ConchProcess) -> None:
        self.folder = folder
        self.server = server

    @asynccontextmanager
    async def clients(self, http: int, grpc: int = 0) -> AsyncIterator[list[Client]]:
        """`count` clients of each kind, those of HTTP first."""
        clients: list[Client] = [HttpClient(self.server.http) for _ in range(http)]
        clients += [GrpcClient(self.server.grpc) for _ in range(grpc)]
        yield clients
        for client in clients:
            await client.close()

    def executed(self, model: str) -> list[int]:
        path = self.folder / f"{model}.executed"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    @contextmanager
    def shut(self, model: str) -> Iterator[None]:
        """Shut the gate of a model for the time of a block."""
        gate = self.folder / f"{model}.shut"
        gate.touch()
        try:
            yield
        finally:
            gate.unlink()

    async def until_waiting(self, model: str, number: int) -> None:
        """Return when `count` requests wait in the queue of a model."""
        async with asyncio.timeout(60):
            while await self.waiting(model) != number:
                await asyncio.sleep(0.005)

    async def waiting(self, model: str) -> int:
        text = await asyncio.to_thread(self.server.metrics)
        label = f'nv_inference_pending_request_count{{model="{model}",version="1"}} '
        return next(int(float(line.removeprefix(label))) for line in text.splitlines() if line.startswith(label))

    async def until_executing(self, model: str, number: int) -> None:
        await until(lambda: len(self.executed(model)) == number)

    def statistics(self, model: str) -> dict[str, int]:
        with urllib.request.urlopen(f"http://{self.server.http}/v2/models/{model}/stats", timeout=60) as response:
            (entry,) = json.load(response)["model_stats"]
        counts = entry["inference_stats"]
        return {"success": counts["success"]["count"], "fail": counts["fail"]["count"]}


def write_counting(folder: Path, name: str, config: str, seconds: float = 0.0) -> None:
    """Write a model that gives back what it is given."""
    body = f"""
    numbers = request.inputs()[0].as_numpy()
    with open({str(folder / name) + ".executed"!r}, "a") as book:
        book.write(str(numbers[0]) + "\\n")
    while os.path.exists({str(folder / name) + ".shut"!r}):
        time.sleep(0.002)
    time.sleep({seconds})
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", numbers)])
    """
    write_python(folder / "models", name, f"{NUMBERS} {config}", body)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("overload")
    write_counting(folder, "slow", batching(BOUNDED), 0.005)
    write_counting(folder, "plain", "", 0.005)
    write_counting(folder, "overriding", batching(TIMEOUT_OVERRIDE))
    for name in ("before", "after"):
        write_counting(folder, name, batching(BOUNDED))
    ends = [f"input {tensor('INPUT0', 'INT32', -1)}", f"output {tensor('OUTPUT0', 'INT32', -1)}"]
    first = "before", {"INPUT0": "INPUT0"}, {"OUTPUT0": "middle"}
    write_ensemble(folder / "models", "chain", *ends, first, ("after", {"INPUT0": "middle"}, {"OUTPUT0": "OUTPUT0"}))
    flags = [f"--default-max-queue-size={MAX_QUEUE}"]
    with ConchProcess(folder / "models", *flags, log=folder / "log") as server:
        yield Bench(folder, server)


@pytest.mark.parametrize("model", ["slow", "plain"])
async def test_under_overload_every_request_is_answered_or_refused_with_a_time_to_come_back(
    bench: Bench, model: str
) -> None:
    load = Load.of(bench.server, [model], http=24, grpc=8)
    async with load.running() as tally:
        await tally.until(50)
        for path in ("/v2/health/live", "/v2/health/ready", f"/v2/models/{model}/ready"):
            await asyncio.to_thread(bench.server.until, path)
        assert await bench.waiting(model) <= MAX_QUEUE
        await tally.until(50)
        await tally.until_refused((model, 503), (model, "UNAVAILABLE"))
    assert tally.lost == []
    assert {refusal.status for refusal in tally.refusals} == {503, "UNAVAILABLE"}
    assert all("Exceeds maximum queue size" in refusal.text for refusal in tally.refusals)
    assert all(refusal.retry_after is not None and int(refusal.retry_after) >= 1 for refusal in tally.refusals)
    assert all(answer.values == (answer.number,) for answer in tally.answers)
    assert sorted(bench.executed(model)) == sorted(answer.number for answer in tally.answers)
    assert bench.statistics(model) == {"success": len(tally.answers), "fail": len(tally.refusals)}


async def test_rejections_carry_the_expected_queue_time(bench: Bench) -> None:
    """A queue that does not move for a while makes the answer to "when?" longer."""
    started = len(bench.executed("slow"))
    async with bench.clients(http=MAX_QUEUE + 6) as (first, *others, refused):
        with bench.shut("slow"):
            answers = [asyncio.create_task(first.ask("slow", 1))]
            await bench.until_executing("slow", started + 1)
            answers += [asyncio.create_task(client.ask("slow", 2)) for client in others]
            await bench.until_waiting("slow", MAX_QUEUE)
            seconds = 1
            async with asyncio.timeout(60):
                while seconds == 1:
                    refusal = await refused.ask("slow", 3)
                    assert isinstance(refusal, Refusal)
                    seconds = int(refusal.retry_after or 0)
                    await asyncio.sleep(0.02)
        outcomes = await asyncio.gather(*answers)
        assert sum(isinstance(outcome, Answer) for outcome in outcomes) == MAX_QUEUE + 1


async def test_whose_time_is_over_or_who_has_gone_is_not_executed(bench: Bench) -> None:
    async with bench.clients(http=3, grpc=2) as (blocking, late, leaving, late_too, staying):
        with bench.shut("overriding"):
            blocker = asyncio.create_task(blocking.ask("overriding", 1))
            await bench.until_executing("overriding", 1)
            refusal = await late.ask("overriding", 2, timeout_us=20_000)
            assert isinstance(refusal, Refusal)
            assert (refusal.status, refusal.text) == (503, "Request timeout expired")
            failed = bench.statistics("overriding")["fail"]
            for timeout_us in (50_000, 1_000_000, 10_000_000):  # a busy client may not send it within the shorter ones
                refusal = await late_too.ask("overriding", 3, timeout_us=timeout_us)
                assert isinstance(refusal, Refusal)
                assert refusal.status in ("DEADLINE_EXCEEDED", "UNAVAILABLE")
                await bench.until_waiting("overriding", 0)
                if bench.statistics("overriding")["fail"] > failed:
                    break
            failed = bench.statistics("overriding")["fail"]
            gone = asyncio.create_task(leaving.ask("overriding", 4))
            kept = asyncio.create_task(staying.ask("overriding", 5))
            await bench.until_waiting("overriding", 2)
            await leaving.close()
            assert isinstance(await gone, Lost)
            await until(lambda: bench.statistics("overriding")["fail"] == failed + 1)
        outcomes = await asyncio.gather(blocker, kept)
        assert [outcome.number for outcome in outcomes if isinstance(outcome, Answer)] == [1, 5]
    assert bench.executed("overriding") == [1, 5]


async def test_a_deadline_of_grpc_ends_a_request_in_a_queue_without_a_policy(bench: Bench) -> None:
    started = bench.executed("before")
    async with bench.clients(http=1, grpc=1) as (blocking, late):
        with bench.shut("before"):
            blocker = asyncio.create_task(blocking.ask("before", 1))
            await bench.until_executing("before", len(started) + 1)
            refusal = await late.ask("before", 2, timeout_us=50_000)
            assert isinstance(refusal, Refusal)
            assert refusal.status == "DEADLINE_EXCEEDED"
            await bench.until_waiting("before", 0)
        assert isinstance(await blocker, Answer)
    assert bench.executed("before") == [*started, 1]


async def test_an_ensemble_does_no_work_for_requests_that_a_later_step_would_refuse(bench: Bench) -> None:
    # Of each kind more than both steps can hold.
    load = Load.of(bench.server, ["chain"], http=4 * MAX_QUEUE, grpc=4 * MAX_QUEUE)
    began = len(bench.executed("before"))
    async with load.running() as tally:
        with bench.shut("after"):
            await until(lambda: sum("step 'after'" in refusal.text for refusal in tally.refusals) >= 100)
            await tally.until_refused(("chain", 503), ("chain", "UNAVAILABLE"))
        await tally.until(50)
    assert tally.lost == []
    assert {refusal.status for refusal in tally.refusals} == {503, "UNAVAILABLE"}
    assert all(
        "in ensemble 'chain', [request id: <id_unknown>] Exceeds maximum queue size" in refusal.text
        for refusal in tally.refusals
    )
    executed = sorted(answer.number for answer in tally.answers)
    assert sorted(bench.executed("before")[began:]) == sorted(bench.executed("after")) == executed
