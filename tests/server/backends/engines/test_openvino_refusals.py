"""Requests that OpenVINO GenAI takes for something else, or has no room for."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from conch.base.errors import InvalidRequest, Unavailable
from conch.domain.generation import StructuredOutput
from conch.server.backends.engines.base import Engine
from tests.server.backends.engines.driving import ask, begin, running
from tests.server.backends.engines.gguf_model import CONTEXT, write_gguf

PROMPT = "the sun is not that hot"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("openvino") / "m" / "1"
    directory.mkdir(parents=True)
    write_gguf(directory / "model.gguf")
    (directory / "model.json").write_text(json.dumps({"num_kv_blocks": 5}))  # of 32 tokens each
    return directory


@pytest.fixture
async def engine(directory: Path) -> AsyncIterator[Engine]:
    async with running("openvino_genai", directory) as made:
        yield made


async def test_tokens_that_are_not_in_the_vocabulary(engine: Engine) -> None:
    refused = await ask(engine, [1, 2**31 - 1], max_tokens=2)
    assert isinstance(refused.end, InvalidRequest)
    assert "token id 2147483647 is out of the vocabulary" in refused.end.message


@pytest.mark.parametrize("ignore_eos", [True, False])
async def test_a_stop_token_ends_the_text_where_the_end_of_the_text_may_not(engine: Engine, ignore_eos: bool) -> None:
    said = await ask(engine, PROMPT, max_tokens=12, temperature=0, ignore_eos=True)
    wanted = said.tokens()[3]
    got = await ask(
        engine, PROMPT, max_tokens=12, temperature=0, ignore_eos=ignore_eos, stop_token_ids=(wanted, 2**31 - 1)
    )
    assert got.tokens() == said.tokens()[: said.tokens().index(wanted) + 1]
    assert (got.finish(), got.deltas[-1].stop_reason) == ("stop", wanted)


async def test_a_cache_that_is_too_small_for_all_at_once(engine: Engine) -> None:
    """Requests that fit alone take turns by preemption; one that does not fit even alone gets an error."""
    crowd = [begin(engine, PROMPT, max_tokens=100, ignore_eos=True) for _ in range(12)]
    several = begin(engine, PROMPT, max_tokens=60, ignore_eos=True, n=4)
    greedy = [begin(engine, PROMPT, max_tokens=CONTEXT - 50, ignore_eos=True, n=n) for n in (1, 3)]
    everyone = [*crowd, several, *greedy]
    await asyncio.wait_for(asyncio.gather(*(got.ended.wait() for got in everyone)), 60)
    assert [got.end.completion_tokens for got in crowd] == [100] * 12  # type: ignore[union-attr]
    assert several.end.completion_tokens == 240  # type: ignore[union-attr]
    for got in greedy:
        assert isinstance(got.end, Unavailable)
        assert "out of KV cache" in got.end.message
    load = engine.load
    assert (load.running, load.waiting, load.kv_cache_usage) == (0, 0, 0.0)


async def test_characters_of_several_tokens_arrive_whole(engine: Engine) -> None:
    """The model's tokens are bytes and pairs of letters, and it is left no choice of what to say."""
    text = "naïve 😀 is 中文, too"
    for _ in range(2):  # the second time, all of the tokens are known
        got = await ask(engine, PROMPT, max_tokens=60, structured=StructuredOutput("regex", text))
        assert got.text() == text
        assert len(got.tokens()) > len(text)
    stopped = await ask(engine, PROMPT, max_tokens=60, structured=StructuredOutput("regex", text), stop=("文,",))
    assert stopped.text() == "naïve 😀 is 中"


async def test_patterns_that_compile_slowly_delay_no_other_structure(engine: Engine) -> None:
    """Each of the bombs would take minutes and gigabytes. They are refused one after another, behind all others."""
    bombs = [
        begin(
            engine,
            PROMPT,
            max_tokens=4,
            structured=StructuredOutput("regex", f"[ab]*a[ab]{{{18 + index}}}"),
            client="a",
        )
        for index in range(4)
    ]
    for index in range(3):
        schema = StructuredOutput("regex", f"(sun|hot) {index}")
        got = await ask(engine, PROMPT, max_tokens=20, structured=schema, client="b")
        assert got.text() in (f"sun {index}", f"hot {index}")
    assert not bombs[-1].ended.is_set()
    plain = await ask(engine, PROMPT, max_tokens=3, ignore_eos=True)
    assert len(plain.tokens()) == 3
    await asyncio.wait_for(asyncio.gather(*(bomb.ended.wait() for bomb in bombs)), 120)
    for bomb in bombs:
        assert isinstance(bomb.end, InvalidRequest)
        assert "it takes more than 3 s to compile" in bomb.end.message
