"""Model processes that are killed, stopped or broken at every phase of a request: who is answered, what is left."""

import asyncio
import http.client
import json
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.grpc as sync_triton
import tritonclient.grpc.aio as triton
from aiohttp import ClientError
from tritonclient.grpc import InferInput

from tests.server.chaos.accounting import HeldResources, resting, settled
from tests.server.chaos.concurrent_clients import (
    TIMEOUT_S,
    ConcurrentClients,
    Outcome,
    concurrent_clients,
    counts,
    outcomes,
    when,
)
from tests.server.chaos.crashing_models import write_crashing
from tests.support.models import tensor, write_ensemble
from tests.support.server_process import ConchProcess

BATCHED = """max_batch_size: 8
    dynamic_batching { preferred_batch_size: [ 8 ] max_queue_delay_microseconds: 20000000 }"""
BY_SENDERS = 'parameters { key: "senders" value { string_value: "yes" } }'
DECOUPLED = "model_transaction_policy { decoupled: true }"

# Beyond what the server below gives a model in shared memory: goes through the socket.
LARGE = 1_000_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    folder = tmp_path_factory.mktemp("chaos")
    models = folder / "models"
    write_crashing(models, "single")
    write_crashing(models, "other")
    write_crashing(models, "pair", "max_batch_size: 1 instance_group { count: 2 }")
    write_crashing(models, "batch", BATCHED)
    write_crashing(models, "senders", f"{BATCHED} {BY_SENDERS}")
    write_crashing(models, "stream", f"max_batch_size: 1 {DECOUPLED}")
    write_ensemble(
        models,
        "chain",
        f"max_batch_size: 1 input {tensor('INPUT0', 'INT32', 1)}",
        f"output {tensor('OUTPUT0', 'INT32', 1)} output {tensor('PID', 'INT32', 1)}",
        ("other", {"INPUT0": "INPUT0"}, {"OUTPUT0": "between"}),
        ("single", {"INPUT0": "between"}, {"OUTPUT0": "OUTPUT0", "PID": "PID"}),
    )
    flags = ["--backend-config=python,shm-limit-byte-size=1048576"]
    with ConchProcess(models, *flags, log=folder / "log") as conch:
        yield conch


@pytest.fixture(scope="module")
def held(server: ConchProcess) -> HeldResources:
    """What the idle server holds, after it has made what it makes only once."""
    with sync_triton.InferenceServerClient(server.grpc) as client:
        assert client.is_server_ready()
    return resting(server.process.pid)


@pytest.fixture
async def clients(server: ConchProcess, held: HeldResources, tmp_path: Path) -> AsyncIterator[ConcurrentClients]:
    """Clients for a test that leaves the server holding what it held before."""
    async with concurrent_clients(server, tmp_path) as some:
        yield some
    settled(server.process.pid, held)


@contextmanager
def balanced(
    server: ConchProcess, model: str, refused_for: str = "BACKEND"
) -> Iterator[Callable[[list[Outcome]], None]]:
    """Hold what the metrics count during the block against what the clients got."""
    counted = counts(server, model)
    ended: list[Outcome] = []
    yield ended.extend
    now = counts(server, model)
    assert now["pending"] == 0
    assert now["success"] - counted["success"] == sum(outcome.answered for outcome in ended)
    assert now[refused_for] - counted[refused_for] == sum(not outcome.answered for outcome in ended)


async def quick(clients: ConcurrentClients, model: str) -> int:
    """Have the model show that it is quick, so that requests are sent ahead to it; returns its process."""
    for _ in range(30):
        pid = await clients.pid(model)
    return pid


def report(event: str, since: float, ended: Sequence[Outcome]) -> None:
    """Print how soon there was an answer again, which depends on other work of the machine."""
    back = min(outcome.at for outcome in ended if outcome.answered)
    print(
        f"{event}: {sum(outcome.answered for outcome in ended)} of {len(ended)} answered, back in {back - since:.3f} s"
    )


KILLING = {
    "kill": "was killed by SIGKILL",
    "segfault": "was killed by SIGSEGV",
    "abort": "was killed by SIGABRT",
    "exit": "exited with status 3",
    "out_of_memory_in_native_code": "was killed by SIGABRT",
    "close_descriptors": "was killed by SIGKILL",
    "babble": "was killed by SIGKILL",
    "die_in_the_middle_of_a_write": "was killed by SIGKILL",
    "leave_a_child": "exited with status 3",
    "leave_a_fork": "exited with status 3",
}


@pytest.mark.parametrize("event", KILLING)
async def test_death_while_executing(clients: ConcurrentClients, event: str) -> None:
    """The request that is executed is refused with the cause; those sent ahead and those queued behind are answered."""
    server = clients.server
    pid = await quick(clients, "single")
    with balanced(server, "single") as book:
        victim, gate = await clients.gated("single", do=event)
        others = [clients.send("single", value) for value in range(8)]
        await clients.waiting("single", 8)  # those sent ahead included
        gate.touch()
        killed = time.monotonic()
        book(ended := await outcomes([victim, *others]))
    report(event, killed, ended)
    assert ended[0].status == 500
    assert "Stub process 'single_0' is not healthy" in ended[0].error
    assert KILLING[event] in ended[0].error
    assert all(outcome.answered and outcome.pid != pid for outcome in ended[1:])


SURVIVED = {"system_exit": "SystemExit: 5", "keyboard_interrupt": "KeyboardInterrupt", "out_of_memory": "MemoryError"}


@pytest.mark.parametrize("event", SURVIVED)
async def test_what_a_process_survives(clients: ConcurrentClients, event: str) -> None:
    pid = await clients.pid("single")
    with balanced(clients.server, "single") as book:
        book(ended := [await clients.ask("single", do=event), await clients.ask("single")])
    assert ended[0].status == 500
    assert SURVIVED[event] in ended[0].error
    assert ended[1].pid == pid


@pytest.mark.parametrize("size", [50_000, LARGE])
async def test_death_in_the_middle_of_a_large_answer(clients: ConcurrentClients, size: int) -> None:
    """Through shared memory, and through the socket."""
    with balanced(clients.server, "single") as book:
        whole = await clients.ask("single", large=size)
        cut = await clients.ask("single", large=size, do="die_in_the_middle_of_a_write")
        again = await clients.ask("single", large=size)
        book([whole, cut, again])
    assert [outcome.answered for outcome in (whole, cut, again)] == [True, False, True]


async def full_batch(clients: ConcurrentClients, model: str, position: int = -1, **order: Any) -> list[Outcome]:
    """Send eight requests that are executed together, in this order; the one at the position has an order."""
    asked = []
    for number in range(8):
        asked.append(clients.send(model, number, **(order if number == position else {})))
        if number < 7:
            await clients.waiting(model, number + 1)
    return await outcomes(asked)


@pytest.mark.parametrize("position", [0, 3, 7])
async def test_death_at_a_position_of_a_batch(clients: ConcurrentClients, position: int) -> None:
    """Who has been answered by then stays answered: those before it where a model answers one by one, else none."""
    for model, answered in (("batch", 0), ("senders", position)):
        with balanced(clients.server, model) as book:
            book(ended := await full_batch(clients, model, position, do="kill"))
            book(after := await full_batch(clients, model))
        assert [outcome.answered for outcome in ended] == [True] * answered + [False] * (8 - answered)
        assert all(outcome.answered for outcome in after)


async def test_a_daemon_that_was_left_holds_nothing_up(clients: ConcurrentClients) -> None:
    """It is in its own session, so that no signal reaches it, and holds everything that can be inherited."""
    server = clients.server
    killed = time.monotonic()
    ended = [await clients.ask("single", do="leave_a_daemon"), await clients.ask("single")]
    report("leave_a_daemon", killed, ended)
    assert [outcome.answered for outcome in ended] == [False, True]
    match = re.search(r"\[single_0\] daemon (\d+)", server.text)
    assert match
    os.kill(int(match[1]), signal.SIGKILL)


async def test_death_while_nothing_is_to_do_and_again_at_the_start(clients: ConcurrentClients) -> None:
    """Requests that come while there is no process wait for the one that will be there."""
    server = clients.server
    first = await clients.pid("single")
    hold = server.log.parent / "models" / "single" / "hold"
    with balanced(server, "single") as book:
        hold.touch()
        os.kill(first, signal.SIGKILL)
        await when(hold.with_suffix(".pid").exists)
        asked = [clients.send("single", value) for value in range(3)]
        await clients.waiting("single", 3)
        second = int(hold.with_suffix(".pid").read_text())
        os.kill(second, signal.SIGKILL)
        await when(lambda: "retrying in 0.5 s" in server.text)
        hold.unlink()
        book(ended := await outcomes(asked))
    assert all(outcome.answered and outcome.pid not in (first, second) for outcome in ended)


async def test_one_of_two_instances_dies(clients: ConcurrentClients) -> None:
    """Only its own request is affected."""
    with balanced(clients.server, "pair") as book:
        victim, gate = await clients.gated("pair", do="kill")
        before = [await clients.ask("pair") for _ in range(5)]
        gate.touch()
        after = [await clients.ask("pair") for _ in range(20)]
        book(ended := [await victim, *before, *after])
    assert [outcome.answered for outcome in ended] == [False] + [True] * 25


async def test_death_of_a_step(clients: ConcurrentClients) -> None:
    with balanced(clients.server, "chain", refused_for="OTHER") as book:
        book(ended := [await clients.ask("chain"), await clients.ask("chain", do="kill"), await clients.ask("chain")])
    assert [outcome.answered for outcome in ended] == [True, False, True]
    assert ended[1].error.startswith("in ensemble 'chain', Stub process 'other_0' is not healthy")


@pytest.mark.parametrize("endpoint", ["generate", "generate_stream"])
@pytest.mark.parametrize("model", ["single", "chain"])
async def test_death_is_a_server_error_of_generate(clients: ConcurrentClients, model: str, endpoint: str) -> None:
    """Errors that a model chooses are 400 there; the end of its process is 500."""
    body = json.dumps({"INPUT0": 1, "do": "kill"})

    def ask() -> tuple[int, str]:
        with closing(http.client.HTTPConnection(clients.server.http, timeout=TIMEOUT_S)) as connection:
            connection.request("POST", f"/v2/models/{model}/{endpoint}", body)
            response = connection.getresponse()
            return response.status, response.read().decode()

    status, text = await asyncio.to_thread(ask)
    assert (status, "is not healthy. It was killed by SIGKILL" in text) == (500, True)
    assert (await clients.ask(model)).answered


async def test_death_between_two_responses(clients: ConcurrentClients) -> None:
    """The stream has the responses that were sent, then one error; the request that waited gets all its responses."""
    given = InferInput("INPUT0", [1, 1], "INT32")
    given.set_data_from_numpy(np.array([[7]], np.int32))

    async def requests() -> AsyncIterator[dict[str, Any]]:
        for name, order in (("dies", {"answers": 3, "do": "kill"}), ("lives", {"answers": 3})):
            yield {"model_name": "stream", "inputs": [given], "request_id": name, "parameters": order}

    got: list[tuple[str, str]] = []
    async with triton.InferenceServerClient(clients.server.grpc) as client, asyncio.timeout(TIMEOUT_S):
        async for result, error in client.stream_infer(requests()):
            got.append(("error", str(error)) if error else (result.get_response().id, ""))
    assert [kind for kind, _ in got] == ["dies", "dies", "error", "lives", "lives", "lives"]
    assert "Stub process 'stream_0' is not healthy" in got[2][1]


@pytest.mark.parametrize("how", [signal.SIGCONT, signal.SIGKILL])
async def test_a_stopped_process_is_a_slow_one(clients: ConcurrentClients, how: signal.Signals) -> None:
    """Its requests wait until their clients cancel, it continues or it dies; no other request waits."""
    server = clients.server
    pid = await quick(clients, "single")
    counted = counts(server, "single")
    with balanced(server, "single") as book:
        stopped, gate = await clients.gated("single", do="stop")
        others = [clients.send("single", value) for value in range(5)]
        await clients.waiting("single", 5)  # those sent ahead included
        gate.touch()
        await when(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
        impatient = await clients.impatient("single")
        await clients.waiting("single", 6)
        impatient.close()
        await clients.waiting("single", 5)
        assert (await clients.ask("other")).answered
        os.kill(pid, how)
        book(ended := await outcomes([stopped, *others]))
    assert [outcome.answered for outcome in ended] == [how is signal.SIGCONT] + [True] * 5
    assert counts(server, "single")["CANCELED"] - counted["CANCELED"] == 1


async def answering_again(clients: ConcurrentClients) -> None:
    """Return when the frontend processes, if there are any besides the server, have been replaced."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            with suppress(ClientError):
                await clients.ask("chain")
                return
            await asyncio.sleep(0.05)


async def test_everything_the_server_has_started_dies_at_once(clients: ConcurrentClients) -> None:
    for child in psutil.Process(clients.server.process.pid).children(recursive=True):
        child.kill()
    killed = time.monotonic()
    await answering_again(clients)
    for model in ("single", "other", "pair"):
        # The first may be sent to a process whose death has not become known yet.
        ended = [await clients.ask(model), await clients.ask(model)]
        report(f"everything killed, {model}", killed, ended)
        assert ended[1].answered
    assert all(outcome.answered for outcome in await full_batch(clients, "batch"))
