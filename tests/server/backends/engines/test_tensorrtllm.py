"""What is TensorRT-LLM's own beyond the engines' contract, over a stand-in for its LLM API."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from conch.base.errors import BackendError, InvalidRequest
from conch.domain.generation import Usage
from conch.server.backends.engines.base import Engine
from tests.server.backends.engines.driving import ask, running
from tests.server.backends.engines.tensorrtllm_standin import environment


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    version = tmp_path / "m" / "1"
    version.mkdir(parents=True)
    environment(tmp_path / "m" / "environment")
    (version / "model.json").write_text('{"model": "org/name", "max_seq_len": 64}')
    async with running("tensorrtllm", version, {"env-path": "$$TRITON_MODEL_DIRECTORY/environment"}) as made:
        yield made


async def test_what_the_library_refuses_is_the_requests_fault(engine: Engine) -> None:
    assert {"structured", "repetition_penalty", "logit_bias"} < engine.info.supported_params
    assert "seed" not in engine.info.supported_params
    refused = await ask(engine, [0, 97])
    assert isinstance(refused.end, InvalidRequest)
    assert "a prompt must not begin with 0" in refused.end.message
    every = await ask(
        engine,
        *("hello",),
        max_tokens=2,
        min_tokens=1,
        top_k=5,
        top_p=0.5,
        min_p=0.1,
        stop_token_ids=(7,),
        presence_penalty=1.0,
        frequency_penalty=1.0,
        repetition_penalty=1.1,
        logprobs=1,
    )
    assert isinstance(every.end, Usage)
    assert [len(token) for delta in every.deltas for token in delta.logprobs] == [2, 2]


async def test_an_executor_that_has_ended_is_replaced(engine: Engine) -> None:
    changed = asyncio.Event()
    engine.on_ready_change = changed.set
    broken = await ask(engine, [1, 97])
    assert isinstance(broken.end, BackendError)
    while not engine.ready:
        changed.clear()
        await asyncio.wait_for(changed.wait(), 60)
    again = await ask(engine, "hello", max_tokens=3)
    assert again.end == Usage(5, 3)
