"""What vLLM has beside what every engine has: adapters, priorities, its caches, its processes. It is really run."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from conch.base.errors import BackendError, InvalidRequest
from conch.domain.generation import StructuredOutput, Usage
from conch.server.backends.engines.base import Engine
from tests.server.backends.engines.driving import Recorded, ask, begin, family, gone, running
from tests.server.backends.engines.gguf_model import CONTEXT
from tests.server.backends.engines.hf_model import write_adapter, write_hf
from tests.server.backends.engines.vllm_environment import SETTINGS, needs_vllm

# One engine for all of these: loading it is what takes long.
pytestmark = [*needs_vllm, pytest.mark.asyncio(loop_scope="module")]

PROMPT = "the sun is not that hot"
# Of one token: keys and values of each layer, FP32.
_TOKEN_BYTES = 2 * 2 * 32 * 4
ARGUMENTS = {
    "model": "model",
    "dtype": "float32",
    "enforce_eager": "true",  # as text, which Triton's repositories may have
    "disable_log_requests": True,  # of an older vLLM
    "enable_lora": True,
    "max_lora_rank": 8,
    "scheduling_policy": "priority",
    "max_num_seqs": 2,
    "block_size": 32,
    "kv_cache_memory_bytes": (CONTEXT + 160) * _TOKEN_BYTES,
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engine]:
    directory = tmp_path_factory.mktemp("vllm") / "m" / "1"
    write_hf(directory / "model")
    write_adapter(directory / "red", seed=1)
    write_adapter(directory / "blue", seed=2)
    (directory / "model.json").write_text(json.dumps(ARGUMENTS))
    (directory / "multi_lora.json").write_text(json.dumps({"red": "red", "blue": str(directory / "blue")}))
    async with running("vllm", directory, SETTINGS) as made:
        yield made


async def test_adapters_change_what_is_said(engine: Engine) -> None:
    assert engine.info.adapters == ("red", "blue")
    said = [await ask(engine, PROMPT, adapter=name, max_tokens=8, temperature=0) for name in ("", "red", "blue")]
    assert len({tuple(got.tokens()) for got in said}) == 3
    together = [ask(engine, PROMPT, adapter=name, max_tokens=8, temperature=0) for name in ("red", "blue")]
    assert [got.tokens() for got in await asyncio.gather(*together)] == [got.tokens() for got in said[1:]]
    unknown = await ask(engine, PROMPT, adapter="green")
    assert isinstance(unknown.end, InvalidRequest)
    assert "LoRA adapter 'green' is unknown; this model has: red, blue" in unknown.end.message


async def test_who_is_more_urgent_comes_first(engine: Engine) -> None:
    assert engine.info.priorities
    order: list[str] = []

    async def record_end(name: str, got: Recorded) -> None:
        await asyncio.wait_for(got.ended.wait(), 60)
        assert isinstance(got.end, Usage)
        order.append(name)

    crowd = [begin(engine, f"{n} {PROMPT}", max_tokens=60, ignore_eos=True) for n in range(2)]
    late = begin(engine, "a", priority=5, max_tokens=1, ignore_eos=True)
    soon = begin(engine, "b", priority=1, max_tokens=1, ignore_eos=True)
    await asyncio.gather(
        *(record_end("crowd", got) for got in crowd), record_end("late", late), record_end("soon", soon)
    )
    assert order.index("soon") < order.index("late")
    assert engine.load.waiting == 0


async def test_a_prompt_that_was_there_before_is_not_computed_again(engine: Engine) -> None:
    prompt = list(range(200))
    before = engine.load.prefix_cache_hits
    first = await ask(engine, prompt, max_tokens=2, ignore_eos=True, temperature=0)
    again = await ask(engine, prompt, max_tokens=2, ignore_eos=True, temperature=0)
    assert isinstance(first.end, Usage)
    assert isinstance(again.end, Usage)
    assert (first.end.cached_tokens, again.end.cached_tokens) == (0, 192)
    assert engine.load.prefix_cache_hits - before == 192
    assert engine.load.prefix_cache_queries >= 400
    assert again.tokens() == first.tokens()


async def test_an_aborted_request_leaves_the_cache(engine: Engine) -> None:
    got = begin(engine, PROMPT, max_tokens=CONTEXT - 100, ignore_eos=True)
    await asyncio.wait_for(got.begun.wait(), 60)
    assert engine.load.running == 1
    assert engine.load.kv_cache_usage > 0
    assert got.generation is not None
    got.generation.abort()
    await _until(lambda: not engine.load.running)
    assert engine.load.kv_cache_usage == 0
    neighbour = await ask(engine, PROMPT, max_tokens=2)
    assert isinstance(neighbour.end, Usage)


async def test_a_request_without_cache_is_preempted_and_resumed(engine: Engine) -> None:
    before = engine.load.preemptions
    both = await asyncio.gather(
        *(ask(engine, [n] * 100, priority=n, max_tokens=CONTEXT - 100, ignore_eos=True) for n in (1, 2))
    )
    assert [got.end for got in both] == [Usage(100, CONTEXT - 100, got.end.cached_tokens) for got in both]  # type: ignore[union-attr]
    assert engine.load.preemptions > before


async def test_sampling_is_what_was_asked_for(engine: Engine) -> None:
    drawn = [await ask(engine, PROMPT, max_tokens=8, ignore_eos=True, seed=seed) for seed in (7, 7, 8)]
    assert drawn[0].tokens() == drawn[1].tokens() != drawn[2].tokens()

    biased = await ask(engine, PROMPT, max_tokens=4, logit_bias={65: 100.0}, temperature=0)
    assert biased.tokens() == [65] * 4

    record_end = await ask(engine, PROMPT, max_tokens=3, ignore_eos=True, logprobs=3, n=2)
    tokens = [token for delta in record_end.deltas for token in delta.logprobs]
    assert [token[0].token_id for token in tokens] == [
        token_id for delta in record_end.deltas for token_id in delta.token_ids
    ]
    assert all(len(token) in (3, 4) for token in tokens)  # the chosen one may be among the likeliest
    assert all(token[1].logprob >= token[2].logprob for token in tokens)
    assert len(tokens) == 6
    greedy = await ask(engine, PROMPT, max_tokens=3, n=2, temperature=0)
    assert isinstance(greedy.end, InvalidRequest)
    assert "n must be 1 when using greedy sampling" in greedy.end.message

    by_token = await ask(engine, PROMPT, max_tokens=50, stop_token_ids=(65,), logit_bias={65: 100.0})
    assert (by_token.finish(), by_token.deltas[-1].stop_reason) == ("stop", 65)


async def test_structured_output(engine: Engine) -> None:
    schema = {"type": "object", "properties": {"rain": {"enum": [True, False]}}, "required": ["rain"]}
    schema["additionalProperties"] = False  # type: ignore[assignment]
    got = await ask(engine, PROMPT, max_tokens=300, structured=StructuredOutput("json", json.dumps(schema)))
    assert got.finish() == "stop"
    assert json.loads(got.text())["rain"] in (True, False)
    chosen = await ask(engine, PROMPT, max_tokens=30, structured=StructuredOutput("choice", '["dog", "cat"]'))
    assert chosen.text() in ("dog", "cat")
    dated = await ask(engine, PROMPT, max_tokens=30, structured=StructuredOutput("regex", "[0-9]{4}-[0-9]{2}"))
    assert dated.text()[4] == "-"
    broken = await ask(engine, PROMPT, max_tokens=30, structured=StructuredOutput("json", '{"type": "wrong"}'))
    assert isinstance(broken.end, InvalidRequest)


async def test_a_request_that_vllm_cannot_compute_harms_no_other(engine: Engine) -> None:
    neighbour = begin(engine, PROMPT, max_tokens=40, ignore_eos=True)
    for params in ({"logit_bias": {10_000_000: 1.0}}, {"stop_token_ids": (10_000_000,), "min_tokens": 2}):
        refused = await ask(engine, PROMPT, **params)
        assert isinstance(refused.end, InvalidRequest), params
    outside = await ask(engine, [10_000_000])
    assert isinstance(outside.end, InvalidRequest)
    empty = await ask(engine, "")
    assert isinstance(empty.end, InvalidRequest)
    await asyncio.wait_for(neighbour.ended.wait(), 60)
    assert neighbour.end.completion_tokens == 40  # type: ignore[union-attr]


async def test_the_death_of_vllms_core_is_seen_and_nothing_of_it_stays(engine: Engine) -> None:
    got = begin(engine, PROMPT, max_tokens=CONTEXT - 100, ignore_eos=True)
    await asyncio.wait_for(got.begun.wait(), 60)
    processes = family(_pid(engine))
    memory = _shared_memory(processes)
    assert memory
    core = next(pid for pid in processes[1:] if len(family(pid)) > 1)
    os.kill(core, signal.SIGKILL)
    await asyncio.wait_for(got.ended.wait(), 60)
    assert isinstance(got.end, BackendError)
    assert "exited with status 1 while this request was being generated" in got.end.message
    await gone([*(Path(f"/proc/{pid}") for pid in processes), *memory])


async def _until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.01)


def _pid(engine: Engine) -> int:
    process = engine._processes.current  # type: ignore[attr-defined]
    return int(process._child.pid)


def _shared_memory(processes: list[int]) -> set[Path]:
    lines = [line for pid in processes for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    return {Path(line.split()[5]) for line in lines if "/dev/shm/" in line}
