"""Idle engines: in any schedule, each request ends once, and a stopped engine gets none."""

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conch.base.errors import Cancelled, ConchError, ConfigError, ModelLoadError, Unavailable
from conch.domain.generation import (
    DeltaCallback,
    EngineInfo,
    EngineLoad,
    Generation,
    GenerationRequest,
    SamplingParams,
    Usage,
)
from conch.domain.model_config import ModelConfig
from conch.server.backends.engines.base import Engine
from conch.server.core.idle_engine import IdleEngine, idle_seconds
from tests.server.backends.engines.driving import Recorded

INFO = EngineInfo(engine="fake", context_length=10, max_running=4)


class Running:
    """A request that the fake engine holds."""

    def __init__(self, engine: "FakeEngine", listen: DeltaCallback) -> None:
        self.engine = engine
        self.listen = listen

    def abort(self) -> None:
        if self in self.engine.held:
            self.engine.held.remove(self)
            self.listen((), Cancelled("cancelled"))


class FakeEngine(Engine):
    """Starts and stops when the gate is open."""

    def __init__(self) -> None:
        self.load = EngineLoad()
        self.held: list[Running] = []
        self.up = False
        self.starts = 0
        self.failures = 0  # of starts to come
        self.gate = asyncio.Event()  # starts and stops wait for it
        self.gate.set()
        self.changes = 0

    @property
    def ready(self) -> bool:
        return self.up

    async def start(self) -> None:
        assert not self.up
        self.starts += 1
        await self.gate.wait()
        if self.failures:
            self.failures -= 1
            raise ModelLoadError("no memory")
        self.info = INFO
        self.up = True

    def generate(self, request: GenerationRequest, listen: DeltaCallback) -> Generation:
        assert self.up
        self.held.append(Running(self, listen))
        return self.held[-1]

    async def stop(self) -> None:
        self.up = False
        for held in list(self.held):
            held.abort()
        await self.gate.wait()

    def answer(self) -> None:
        for held in list(self.held):
            self.held.remove(held)
            held.listen((), Usage(1, 1))


def ask(engine: Engine) -> Recorded:
    received = Recorded()
    request = GenerationRequest(id="1", model_name="m", prompt="p", params=SamplingParams())
    received.generation = engine.generate(request, received.on_deltas)
    return received


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0)


async def sleeping() -> tuple[FakeEngine, IdleEngine]:
    """Return an engine that has been stopped because it was idle."""
    inner = FakeEngine()
    engine = IdleEngine(inner, "m", 0.0)
    engine.on_ready_change = lambda: None
    await engine.start()
    assert engine.ready
    await until(lambda: not inner.up)
    return inner, engine


async def test_requests_to_a_stopped_engine_wait_for_one_start() -> None:
    inner, engine = await sleeping()
    assert engine.ready
    assert engine.load.stopped
    inner.gate.clear()
    received = [ask(engine) for _ in range(3)]
    assert engine.load.waiting == 3
    inner.gate.set()
    await until(lambda: len(inner.held) == 3)
    assert (inner.starts, engine.load.waiting, engine.load.stopped) == (2, 0, False)
    inner.answer()
    assert [caller.end for caller in received] == [Usage(1, 1)] * 3
    await until(lambda: engine.load.stopped)
    await engine.stop()
    assert not engine.ready


async def test_request_during_the_stop_waits_for_the_next_start() -> None:
    inner, engine = await sleeping()
    received = ask(engine)
    await until(lambda: len(inner.held) == 1)
    inner.gate.clear()
    inner.answer()
    await until(lambda: not inner.up)  # the stop has begun
    late = ask(engine)
    assert inner.starts == 2
    inner.gate.set()
    await until(lambda: len(inner.held) == 1)
    assert inner.starts == 3
    inner.answer()
    assert received.end == late.end == Usage(1, 1)
    await engine.stop()


async def test_cancelled_request_is_not_submitted() -> None:
    inner, engine = await sleeping()
    inner.gate.clear()
    gone, stays = ask(engine), ask(engine)
    assert gone.generation is not None
    gone.generation.abort()
    gone.generation.abort()
    assert isinstance(gone.end, Cancelled)
    assert engine.load.waiting == 1
    inner.gate.set()
    await until(lambda: len(inner.held) == 1)
    inner.answer()
    assert stays.end == Usage(1, 1)
    await engine.stop()


async def test_failed_start_is_reported_and_retried() -> None:
    inner, engine = await sleeping()
    changes: list[bool] = []
    engine.on_ready_change = lambda: changes.append(engine.ready)
    inner.failures = 2
    received = ask(engine)
    await asyncio.wait_for(received.ended.wait(), 30)
    assert isinstance(received.end, Unavailable)
    assert "cannot be started again: no memory" in received.end.message
    assert received.end.retry_after_s == 1.0
    assert not engine.ready
    with pytest.raises(Unavailable, match="no memory"):
        ask(engine)
    await until(lambda: changes[-1])  # by a retry
    assert changes == [False, False, True]
    again = ask(engine)
    await until(lambda: len(inner.held) == 1)
    inner.answer()
    assert again.end == Usage(1, 1)
    await engine.stop()


async def test_start_timeout() -> None:
    inner = FakeEngine()
    engine = IdleEngine(inner, "m", 0.0, wait_s=0.0)
    engine.on_ready_change = lambda: None
    await engine.start()
    await until(lambda: not inner.up)
    inner.gate.clear()
    received = ask(engine)
    await asyncio.wait_for(received.ended.wait(), 30)
    assert isinstance(received.end, Unavailable)
    assert "takes longer than 0 s to start" in received.end.message
    await engine.kill()
    assert isinstance(received.end, Unavailable)


async def test_unload_fails_waiting_requests() -> None:
    inner, engine = await sleeping()
    inner.gate.clear()
    received = ask(engine)
    await asyncio.sleep(0)
    inner.gate.set()
    await engine.stop()
    assert isinstance(received.end, Unavailable)
    assert not engine.ready


@settings(max_examples=60)
@given(st.lists(st.sampled_from(["ask", "abort", "answer", "hold", "go", "fail", "turn"]), max_size=40))
def test_each_request_ends_once_in_any_schedule(steps: list[str]) -> None:
    asyncio.run(_play(steps))


async def _play(steps: list[str]) -> None:
    inner, engine = await sleeping()
    all_received: list[Recorded] = []
    for step in steps:
        if step == "ask":
            try:
                all_received.append(ask(engine))
            except ConchError:
                assert not engine.ready
        elif step == "abort" and all_received:
            generation = all_received[-1].generation
            assert generation is not None
            generation.abort()
        elif step == "answer":
            inner.answer()
        elif step == "hold":
            inner.gate.clear()
        elif step == "go":
            inner.gate.set()
        elif step == "fail":
            inner.failures += 1
        else:
            for _ in range(4):
                await asyncio.sleep(0)
        open_ = [received for received in all_received if not received.ends]
        assert len(open_) == len(inner.held) + engine.load.waiting
    inner.gate.set()
    await engine.stop()
    assert all(len(received.ends) == 1 for received in all_received)
    assert not inner.up
    assert not inner.held


def test_parameter_overrides_the_flag() -> None:
    def config(**parameters: str) -> ModelConfig:
        return ModelConfig("m", "scripted", "", 0, (), (), parameters=parameters)

    assert idle_seconds(config(), 7) == 7
    assert idle_seconds(config(idle_unload_secs="0"), 7) == 0
    with pytest.raises(ConfigError, match="parameter idle_unload_secs of model 'm' must be a number of seconds"):
        idle_seconds(config(idle_unload_secs="-1"), 0)
