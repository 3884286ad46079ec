"""Engines that sleep: whenever a request comes, it ends once, and no engine is asked that is not there."""

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conch.backends.engines.base import Engine
from conch.core.generation.idle_engine import IdleEngine, idle_seconds
from conch.errors import Cancelled, ConchError, ConfigError, ModelLoadError, Unavailable
from conch.generation import DeltaCallback, EngineInfo, EngineLoad, Generation, GenerationRequest, SamplingParams, Usage
from conch.model_config import ModelConfig
from tests.backends.engines.driving import Heard

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
    """Starts and stops when it is told that it is done."""

    def __init__(self) -> None:
        self.load = EngineLoad()
        self.held: list[Running] = []
        self.up = False
        self.starts = 0
        self.failures = 0  # of starts to come
        self.gate = asyncio.Event()  # whether starting and stopping get on
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
        for each in list(self.held):
            each.abort()
        await self.gate.wait()

    def answer(self) -> None:
        for each in list(self.held):
            self.held.remove(each)
            each.listen((), Usage(1, 1))


def ask(engine: Engine) -> Heard:
    heard = Heard()
    request = GenerationRequest(id="1", model_name="m", prompt="p", params=SamplingParams())
    heard.generation = engine.generate(request, heard.listen)
    return heard


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0)


async def sleeping() -> tuple[FakeEngine, IdleEngine]:
    """An engine that has fallen asleep at once."""
    inner = FakeEngine()
    engine = IdleEngine(inner, "m", 0.0)
    engine.on_ready_change = lambda: None
    await engine.start()
    assert engine.ready
    await until(lambda: not inner.up)
    return inner, engine


async def test_what_comes_while_it_sleeps_waits_for_one_start() -> None:
    inner, engine = await sleeping()
    assert engine.ready
    assert engine.load.asleep
    inner.gate.clear()
    heard = [ask(engine) for _ in range(3)]
    assert engine.load.waiting == 3
    inner.gate.set()
    await until(lambda: len(inner.held) == 3)
    assert (inner.starts, engine.load.waiting, engine.load.asleep) == (2, 0, False)
    inner.answer()
    assert [each.end for each in heard] == [Usage(1, 1)] * 3
    await until(lambda: engine.load.asleep)
    await engine.stop()
    assert not engine.ready


async def test_what_comes_while_it_is_being_stopped_waits_for_the_end_and_the_start() -> None:
    inner, engine = await sleeping()
    heard = ask(engine)
    await until(lambda: len(inner.held) == 1)
    inner.gate.clear()
    inner.answer()
    await until(lambda: not inner.up)  # stopping, and not done with it
    late = ask(engine)
    assert inner.starts == 2
    inner.gate.set()
    await until(lambda: len(inner.held) == 1)
    assert inner.starts == 3
    inner.answer()
    assert heard.end == late.end == Usage(1, 1)
    await engine.stop()


async def test_one_that_nobody_waits_for_any_more_is_not_asked_for() -> None:
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


async def test_a_start_that_fails_is_told_and_tried_again() -> None:
    inner, engine = await sleeping()
    changes: list[bool] = []
    engine.on_ready_change = lambda: changes.append(engine.ready)
    inner.failures = 2
    heard = ask(engine)
    await asyncio.wait_for(heard.ended.wait(), 30)
    assert isinstance(heard.end, Unavailable)
    assert "cannot be started again: no memory" in heard.end.message
    assert heard.end.retry_after_s == 1.0
    assert not engine.ready
    with pytest.raises(Unavailable, match="no memory"):
        ask(engine)
    await until(lambda: changes[-1])  # by itself
    assert changes == [False, False, True]
    again = ask(engine)
    await until(lambda: len(inner.held) == 1)
    inner.answer()
    assert again.end == Usage(1, 1)
    await engine.stop()


async def test_waiting_has_a_limit() -> None:
    inner = FakeEngine()
    engine = IdleEngine(inner, "m", 0.0, wait_s=0.0)
    engine.on_ready_change = lambda: None
    await engine.start()
    await until(lambda: not inner.up)
    inner.gate.clear()
    heard = ask(engine)
    await asyncio.wait_for(heard.ended.wait(), 30)
    assert isinstance(heard.end, Unavailable)
    assert "takes longer than 0 s to start" in heard.end.message
    await engine.kill()
    assert isinstance(heard.end, Unavailable)


async def test_what_waits_for_an_engine_that_is_unloaded_is_told() -> None:
    inner, engine = await sleeping()
    inner.gate.clear()
    heard = ask(engine)
    await asyncio.sleep(0)
    inner.gate.set()
    await engine.stop()
    assert isinstance(heard.end, Unavailable)
    assert not engine.ready


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["ask", "abort", "answer", "hold", "go", "fail", "turn"]), max_size=40))
def test_whatever_happens_when_each_request_ends_once(steps: list[str]) -> None:
    asyncio.run(_play(steps))


async def _play(steps: list[str]) -> None:
    inner, engine = await sleeping()
    all_heard: list[Heard] = []
    for step in steps:
        if step == "ask":
            try:
                all_heard.append(ask(engine))
            except ConchError:
                assert not engine.ready
        elif step == "abort" and all_heard:
            generation = all_heard[-1].generation
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
        open_ = [heard for heard in all_heard if not heard.ends]
        assert len(open_) == len(inner.held) + engine.load.waiting
    inner.gate.set()
    await engine.stop()
    assert all(len(heard.ends) == 1 for heard in all_heard)
    assert not inner.up
    assert not inner.held


def test_the_parameter_goes_before_the_flag() -> None:
    def config(**parameters: str) -> ModelConfig:
        return ModelConfig("m", "scripted", "", 0, (), (), parameters=parameters)

    assert idle_seconds(config(), 7) == 7
    assert idle_seconds(config(idle_unload_secs="0"), 7) == 0
    with pytest.raises(ConfigError, match="parameter idle_unload_secs of model 'm' must be a number of seconds"):
        idle_seconds(config(idle_unload_secs="-1"), 0)
