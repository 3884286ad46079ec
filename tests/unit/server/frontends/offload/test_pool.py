"""Jobs run in processes that can be lost, and errors come back as what they were."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import psutil
import pytest

from conch.base.errors import Code, ConchError, InvalidParameter, InvalidRequest, ModelLoadError, TooLarge, Unavailable
from conch.protocols.compression import UnknownCoding
from conch.protocols.openai.fields import InvalidField
from conch.server.frontends.offload import jobs
from conch.server.frontends.offload.pool import OffloadPool


def describe(template: str) -> dict[str, Any]:
    return {
        "template": template,
        "special_tokens": {},
        "tools": [],
        "tool_call_parser": "",
        "add_generation_prompt": True,
        "continue_final_message": False,
        "arguments": {},
        "echo": False,
        "image_placeholders": [],
    }


FOREVER = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.fixture(autouse=True)
def no_other_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look past the workers that other tests have left."""
    before = {child.pid for child in workers()}
    monkeypatch.setattr(
        f"{__name__}.workers", lambda find=workers: [worker for worker in find() if worker.pid not in before]
    )


@pytest.fixture
async def pool() -> AsyncIterator[OffloadPool]:
    pool = OffloadPool("test", workers=1)
    yield pool
    await pool.stop()


def workers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "conch.server.frontends.offload.worker" in command(child)]


def command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:  # it has just ended, and may not be reaped yet
        return []


async def computing() -> psutil.Process:
    """Wait until a worker uses the processor, and return it."""
    before: dict[int, float] = {}
    while True:
        for worker in workers():
            used_s = worker.cpu_times().user
            if used_s > before.setdefault(worker.pid, used_s) + 0.05:
                return worker
        await asyncio.sleep(0.01)


async def test_a_job_returns_values_and_buffers(pool: OffloadPool) -> None:
    meta, parts = await pool.run("load", {}, [b'{"parameters": {"config": "{}", "file:1/a": "aGVsbG8="}}'], client="a")
    assert meta == {"config": "{}", "files": ["1/a"]}
    assert [bytes(part) for part in parts] == [b"hello"]


async def test_an_error_of_a_job_is_the_error_of_its_caller(pool: OffloadPool) -> None:
    with pytest.raises(InvalidRequest, match="not valid base64"):
        await pool.run("load", {}, [b'{"parameters": {"file:1/a": "?"}}'], client="a")


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("a"),
        TooLarge("a"),
        ModelLoadError("a", Code.UNAVAILABLE),
        InvalidField("messages[1]", "a"),
        InvalidParameter("top_p", "a"),
        UnknownCoding("a"),
        ConchError("a"),
    ],
)
def test_an_error_survives_the_way(error: ConchError) -> None:
    made = jobs.restore(jobs.describe(error))
    assert type(made) is type(error)
    assert (made.message, made.code) == (error.message, error.code)
    assert getattr(made, "param", None) == getattr(error, "param", None)


async def test_a_job_that_takes_too_long_ends_its_process_and_no_other_job() -> None:
    pool = OffloadPool("test", workers=1, limit_s=0.3, too_slow="too slow")
    try:
        waiting = asyncio.ensure_future(pool.run("render", describe(FOREVER), [b"[]"], client="a"))
        behind = asyncio.ensure_future(pool.run("render", describe("hello"), [b"[]"], client="a"))
        with pytest.raises(InvalidRequest, match=r"too slow: more than 0.3 s"):
            await waiting
        pool.limit_s = 60.0
        assert bytes((await behind).parts[0]) == b"hello"
    finally:
        await pool.stop()


async def test_a_process_that_dies_costs_its_job(pool: OffloadPool) -> None:
    await pool.run("nothing", {}, [], client="a")
    doomed = asyncio.ensure_future(pool.run("render", describe(FOREVER), [b"[]"], client="a"))
    (await computing()).kill()
    with pytest.raises(ConchError, match="worker process for large messages failed"):
        await doomed
    assert bytes((await pool.run("render", describe("again"), [b"[]"], client="a")).parts[0]) == b"again"


async def test_a_process_that_died_while_it_was_idle_costs_no_job(pool: OffloadPool) -> None:
    await pool.run("nothing", {}, (), client="a")
    [worker] = workers()
    worker.kill()
    worker.wait(60)
    await pool.run("nothing", {}, (), client="a")
    [successor] = workers()
    assert successor.pid != worker.pid


async def test_a_template_gets_no_more_memory_than_allowed() -> None:
    pool = OffloadPool("test", workers=1, memory_bytes=2**29)
    try:
        with pytest.raises(InvalidRequest):
            await pool.run("render", describe("{{ 'a' * 900000000 }}"), [b"[]"], client="a")
        with pytest.raises(InvalidRequest, match="to a prompt of 20000000 bytes"):
            await pool.run("render", describe("{{ 'a' * 20000000 }}"), [b"[]"], client="a")
    finally:
        await pool.stop()


async def test_a_cancelled_job_is_not_run(pool: OffloadPool) -> None:
    outcomes: list[object] = []
    pool.submit("nothing", {}, [], outcomes.append, client="a")
    pool.submit("load", {}, [b"{}"], outcomes.append, client="a").cancel()
    await pool.run("nothing", {}, [], client="a")
    assert isinstance(outcomes[1], Unavailable)


async def test_a_process_knows_nothing_of_the_servers_environment(
    pool: OffloadPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    await pool.run("nothing", {}, [], client="a")
    (worker,) = workers()
    assert "secret" not in worker.environ().values()


async def test_stopping_ends_what_runs() -> None:
    pool = OffloadPool("test", workers=1)
    running = asyncio.ensure_future(pool.run("render", describe(FOREVER), [b"[]"], client="a"))
    await asyncio.sleep(0.05)
    await pool.stop()
    with pytest.raises(Unavailable):
        await running
    assert workers() == []
    with pytest.raises(Unavailable):
        pool.submit("nothing", {}, [], lambda _: None, client="a")


@pytest.mark.slow
async def test_an_idle_process_ends() -> None:
    pool = OffloadPool("test", workers=1, idle_s=0.05)
    try:
        await pool.run("nothing", {}, [], client="a")
        while workers():
            await asyncio.sleep(0.01)
        await pool.run("nothing", {}, [], client="a")
    finally:
        await pool.stop()


# 4 MiB of this text compress to 4 kB.
LARGE = b'{"inputs":[{"name":"A","datatype":"BYTES","shape":[1],"data":[' + b'"",' * 2**20 + b'""]}]}'
SMALL = b'{"inputs":[{"name":"A","datatype":"BYTES","shape":[1],"data":[""]}]}'
READ = {"coding": "", "limit": 2**26, "header_length": None}


async def test_large_jobs_of_one_client_do_not_delay_a_small_one() -> None:
    pool = OffloadPool("test", workers=2)
    try:
        order: list[object] = []
        pool.submit("render", describe(FOREVER), [b"[]"], order.append, client="a", size=len(LARGE))
        for _ in range(5):
            pool.submit("infer_request", READ, [LARGE], order.append, client="a")
        await pool.run("infer_request", READ, [SMALL], client="b")
        assert order == []  # the other worker has a large job meanwhile
        large = asyncio.ensure_future(pool.run("infer_request", READ, [LARGE], client="c"))
        (await computing()).kill()
        await large
        assert len(order) < 5  # those of the other client would have been 6 before it
    finally:
        await pool.stop()


@pytest.mark.slow
async def test_a_job_over_its_processor_time_ends_its_process_and_no_other_job() -> None:
    pool = OffloadPool("test", workers=1, too_slow="too slow")
    try:
        with pytest.raises(TooLarge, match=r"too slow: more than 5 s of processor time"):
            await pool.run("render", describe(FOREVER), [b"[]"], client="a")
        assert bytes((await pool.run("render", describe("again"), [b"[]"], client="a")).parts[0]) == b"again"
    finally:
        await pool.stop()


async def test_a_full_queue_makes_room_for_other_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conch.server.frontends.offload.pool.MAX_WAITING_JOBS", 8)
    pool = OffloadPool("test", workers=1)
    try:
        outcomes: list[object] = []
        for _ in range(8):
            pool.submit("nothing", {}, [], outcomes.append, client="a")
        with pytest.raises(Unavailable, match="too many large messages"):
            pool.submit("nothing", {}, [], outcomes.append, client="a")
        await pool.run("nothing", {}, [], client="b")
        assert sum(isinstance(outcome, Unavailable) for outcome in outcomes) == 1
    finally:
        await pool.stop()
