"""The histogram of first responses, filled by served models."""

import asyncio

from conch.domain.model_config import ModelConfig
from conch.domain.request import InferResponse
from conch.domain.statistics.model_statistics import Histogram
from conch.server.core.scheduling.batching_model import BatchingModel
from tests.unit.server.core.scripted import Caller, ScriptedInstance, config, request


async def answered(model_config: ModelConfig, responses: int) -> Histogram | None:
    """Have one request answered: some responses, then the final one."""
    worker = ScriptedInstance()
    model = BatchingModel(model_config, 1, {}, [worker], asyncio.get_running_loop())
    await model.start()
    model.submit(request(), Caller())
    for _ in range(responses):
        worker.batches[0].executions[0].send(InferResponse("m", 1, []))
    worker.answer()
    return model.statistics.first_response


async def test_a_decoupled_model_counts_each_request_once_however_many_responses_it_has() -> None:
    for responses in (0, 1, 3):
        histogram = await answered(config(decoupled=True), responses)
        assert histogram is not None
        assert sum(histogram.counts) == 1
        assert histogram.ns > 0


async def test_other_models_keep_none() -> None:
    assert await answered(config(), 0) is None
