"""What every engine keeps to, whichever it is: the shipped script, and the others with random weights."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from time import monotonic_ns

import pytest
import pytest_asyncio

from conch.base.errors import BackendError, Cancelled, ConfigError, InvalidRequest, ModelLoadError
from conch.domain.generation import Usage
from conch.domain.model_config import ModelConfig
from conch.server.backends.base import ModelSource
from conch.server.backends.engines.base import Engine
from conch.server.backends.engines.process_engine import ProcessEngine
from conch.server.backends.processes import child_process
from tests.server.backends.engines.driving import ask, begin, family, gone, running
from tests.server.backends.engines.gguf_model import CONTEXT, write_gguf
from tests.server.backends.engines.hf_model import write_hf
from tests.server.backends.engines.tensorrtllm_environment import SETTINGS as TENSORRTLLM_SETTINGS
from tests.server.backends.engines.tensorrtllm_environment import needs_tensorrtllm
from tests.server.backends.engines.tensorrtllm_standin import environment
from tests.server.backends.engines.vllm_environment import SETTINGS as VLLM_SETTINGS
from tests.server.backends.engines.vllm_environment import needs_vllm

PROMPT = "the sun is not that hot"


def _scripted(directory: Path) -> None:
    (directory / "model.json").write_text(json.dumps({"step_ms": 1, "context_length": CONTEXT}))


def _openvino_genai(directory: Path) -> None:
    write_gguf(directory / "model.gguf")
    (directory / "model.json").write_text(json.dumps({"num_kv_blocks": 256}))


def _vllm(directory: Path) -> None:
    write_hf(directory / "model")
    arguments = {"model": "model", "dtype": "float32", "enforce_eager": True, "kv_cache_memory_bytes": 1 << 24}
    (directory / "model.json").write_text(json.dumps(arguments))


def _tensorrtllm(directory: Path) -> None:
    write_hf(directory / "model")
    arguments = {"model": "model", "max_seq_len": CONTEXT, "kv_cache_config": {"free_gpu_memory_fraction": 0.1}}
    (directory / "model.json").write_text(json.dumps(arguments))


def _tensorrtllm_standin(directory: Path) -> None:
    _tensorrtllm(directory)
    environment(directory.parent / "environment")


MAKERS = {"scripted": _scripted, "openvino_genai": _openvino_genai, "vllm": _vllm, "tensorrtllm": _tensorrtllm}
MAKERS["tensorrtllm-standin"] = _tensorrtllm_standin
SETTINGS = {
    "vllm": VLLM_SETTINGS,
    "tensorrtllm": TENSORRTLLM_SETTINGS,
    "tensorrtllm-standin": {"env-path": "$$TRITON_MODEL_DIRECTORY/environment"},
}
ENGINES = [
    *("scripted", "openvino_genai", "tensorrtllm-standin"),
    pytest.param("vllm", marks=needs_vllm),
    pytest.param("tensorrtllm", marks=needs_tensorrtllm),
]

# All of it in one loop, so that each engine is loaded once.
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(params=ENGINES, scope="module", loop_scope="module")
async def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engine]:
    directory = tmp_path_factory.mktemp("engine") / "m" / "1"
    directory.mkdir(parents=True)
    MAKERS[request.param](directory)
    async with running(_backend(request.param), directory, SETTINGS.get(request.param)) as made:
        yield made


async def test_requests_of_every_kind_end_once(engine: Engine) -> None:
    info = engine.info
    assert info.context_length == CONTEXT
    assert info.device == ("GPU 0" if info.engine == "tensorrtllm" or info.gpu_memory_share else "CPU")
    assert "messages" in info.chat_template

    asked = monotonic_ns()
    alone = await ask(engine, PROMPT, max_tokens=5, ignore_eos=True, temperature=0)
    assert isinstance(alone.end, Usage)
    assert alone.end.completion_tokens == 5 == len(alone.tokens())
    assert alone.finish() == "length"
    if info.engine != "tensorrtllm":  # which does not say
        assert asked <= alone.end.scheduled <= monotonic_ns()

    # Together as alone: greedy decoding does not depend on who else is there.
    crowd = await asyncio.gather(
        *(ask(engine, PROMPT, max_tokens=5, ignore_eos=True, temperature=0) for _ in range(20))
    )
    assert {got.text() for got in crowd} == {alone.text()}
    assert all(got.end == Usage(alone.end.prompt_tokens, 5, got.end.cached_tokens) for got in crowd)  # type: ignore[union-attr]

    several = await ask(engine, PROMPT, n=3, max_tokens=4, ignore_eos=True)
    assert {delta.index for delta in several.deltas} == {0, 1, 2}
    assert [several.finish(index) for index in range(3)] == ["length"] * 3
    assert several.end.completion_tokens == 12  # type: ignore[union-attr]

    stop = alone.text()[2:4]
    assert len(stop) == 2
    stopped = await ask(engine, PROMPT, max_tokens=5, ignore_eos=True, temperature=0, stop=(stop,))
    assert stopped.text() == alone.text().partition(stop)[0]
    assert stopped.finish() == "stop"
    assert stopped.deltas[-1].stop_reason == stop

    scored = await ask(engine, PROMPT, max_tokens=3, ignore_eos=True, logprobs=0)
    assert [len(token) for delta in scored.deltas for token in delta.logprobs] == [1] * 3
    assert all(token[0].logprob <= 0 for delta in scored.deltas for token in delta.logprobs)

    by_tokens = await ask(engine, alone.tokens(), max_tokens=2, ignore_eos=True)
    assert by_tokens.end.prompt_tokens == 5  # type: ignore[union-attr]


async def test_invalid_requests_are_refused_and_harm_no_other(engine: Engine) -> None:
    neighbour = begin(engine, PROMPT, max_tokens=60, ignore_eos=True)
    too_long = await ask(engine, PROMPT * CONTEXT)
    assert isinstance(too_long.end, InvalidRequest)
    assert f"maximum context length is {CONTEXT} tokens" in too_long.end.message
    too_much = await ask(engine, PROMPT, max_tokens=CONTEXT)
    assert isinstance(too_much.end, InvalidRequest)
    assert not too_much.deltas
    await asyncio.wait_for(neighbour.ended.wait(), 60)
    assert neighbour.end.completion_tokens == 60  # type: ignore[union-attr]


async def test_a_request_without_generation_returns_the_size_of_its_prompt(engine: Engine) -> None:
    got = await ask(engine, PROMPT, prompt_only=True, max_tokens=1)
    assert isinstance(got.end, Usage)
    (delta,) = got.deltas
    assert delta.prompt is not None
    assert len(delta.prompt.token_ids) == got.end.prompt_tokens > 0
    assert engine.ready


async def test_an_aborted_request_frees_its_place(engine: Engine) -> None:
    got = begin(engine, PROMPT, max_tokens=CONTEXT - 100, ignore_eos=True)
    got.abort_at_first = True
    await asyncio.wait_for(got.begun.wait(), 60)
    assert got.generation is not None
    got.generation.abort()
    assert isinstance(got.end, Cancelled)
    # The engine reports its load without another request.
    async with asyncio.timeout(60):
        while (engine.load.running, engine.load.waiting, engine.load.kv_cache_usage) != (0, 0, 0.0):
            await asyncio.sleep(0.01)
    assert isinstance(got.end, Cancelled)


async def test_a_killed_engine_fails_what_it_held_and_is_replaced(engine: Engine) -> None:
    changed = asyncio.Event()
    engine.on_ready_change = changed.set
    end: object = None
    while not isinstance(end, BackendError):  # on a busy machine a generation may end before it is seen to begin
        got = begin(engine, PROMPT, max_tokens=CONTEXT - 100, ignore_eos=True)
        await asyncio.wait_for(got.begun.wait(), 60)
        processes = family(_pid(engine))
        os.kill(processes[0], signal.SIGKILL)
        await asyncio.wait_for(got.ended.wait(), 60)
        end = got.end
        await gone([Path(f"/proc/{process}") for process in processes])
        while not engine.ready:
            changed.clear()
            await asyncio.wait_for(changed.wait(), 300)
    assert "was killed by SIGKILL while this request was being generated" in end.message
    again = await ask(engine, PROMPT, max_tokens=2, ignore_eos=True)
    assert again.end.completion_tokens == 2  # type: ignore[union-attr]


async def test_a_stopped_engine_answers_what_it_held(engine: Engine) -> None:
    got = begin(engine, PROMPT, max_tokens=CONTEXT - 100, ignore_eos=True)
    await engine.stop()
    assert "was unloaded before the request was finished" in str(got.end)
    assert not engine.ready


@pytest.mark.parametrize("backend", ENGINES)
async def test_a_model_that_cannot_be_loaded_says_why(backend: str, tmp_path: Path) -> None:
    directory = tmp_path / "m" / "1"
    directory.mkdir(parents=True)
    MAKERS[backend](directory)
    (directory / "model.json").write_text('{"cache": 1}')
    with pytest.raises(ModelLoadError, match=r"unknown key 'cache'; known: |'model' must name a checkpoint"):
        async with running(_backend(backend), directory, SETTINGS.get(backend)):
            pass


async def test_a_slow_load_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "REPORT_INTERVAL_S", 0.001)
    caplog.set_level("INFO", "conch.model")
    directory = tmp_path / "m" / "1"
    directory.mkdir(parents=True)
    MAKERS["scripted"](directory)
    async with running("scripted", directory):
        pass
    assert "the engine of model 'm' is still loading after 0 s" in caplog.messages


async def test_a_load_has_a_limit_where_one_is_set(tmp_path: Path) -> None:
    stuck = tmp_path / "python"
    stuck.write_text("#!/bin/sh\nexec sleep 600\n")
    stuck.chmod(0o755)
    (tmp_path / "m" / "1").mkdir(parents=True)
    config = ModelConfig(name="m", backend="scripted", platform="", max_batch_size=0, inputs=(), outputs=())
    settings = {"stub-timeout-seconds": "1"}
    engine = ProcessEngine(ModelSource(config, 1, tmp_path / "m", settings), "scripted", python=stuck)
    with pytest.raises(ModelLoadError, match=r"loading engine 'm' took longer than 1 s; increase stub-timeout-seconds"):
        await engine.start()
    with pytest.raises(ConfigError, match="--backend-config=scripted,stub-timeout-seconds=soon"):
        ProcessEngine(ModelSource(config, 1, tmp_path / "m", {"stub-timeout-seconds": "soon"}), "scripted")


def _backend(engine: str) -> str:
    return engine.partition("-")[0]


def _pid(engine: Engine) -> int:
    process = engine._processes.current  # type: ignore[attr-defined]
    return int(process._child.pid)
