"""Changes of a model's instances while it executes: the others continue, no request is lost."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conch.base.errors import ModelLoadError
from conch.domain.request import InferResponse
from conch.server.core.scheduling.batching_model import BatchingModel
from tests.unit.server.core.scripted import Caller, ScriptedInstance, config, request


class Failing(ScriptedInstance):
    async def start(self) -> None:
        raise ModelLoadError("no memory")


async def started(number: int) -> tuple[BatchingModel, list[ScriptedInstance]]:
    workers = [ScriptedInstance() for _ in range(number)]
    model = BatchingModel(config(), 1, {}, workers, asyncio.get_running_loop())
    await model.start()
    return model, workers


def ask(model: BatchingModel) -> Caller:
    caller = Caller()
    model.submit(request(), caller)
    return caller


async def turns(number: int = 5) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def test_removed_instance_finishes_its_batches() -> None:
    model, (stays, goes) = await started(2)
    callers = [ask(model), ask(model)]
    assert stays.batches
    assert goes.batches
    smaller = replace(model.config, default_model_filename="other")
    await model.rearrange(smaller, [stays])
    callers.append(ask(model))
    await turns()
    assert model.config is smaller
    assert not goes.stopped
    goes.answer()
    await turns()
    assert goes.stopped
    assert not goes.batches
    stays.answer()
    await turns()
    stays.answer()
    assert all(isinstance(caller.answer, InferResponse) for caller in callers)
    assert not stays.stopped
    await model.stop()


async def test_new_instance_takes_waiting_requests() -> None:
    model, (busy,) = await started(1)
    callers = [ask(model), ask(model)]
    new = ScriptedInstance()
    await model.rearrange(model.config, [busy, new])
    await turns()
    new.answer()
    assert isinstance(callers[1].answer, InferResponse)
    busy.answer()
    await model.stop()
    assert new.stopped


async def test_failed_start_changes_nothing() -> None:
    model, (old,) = await started(1)
    fine, before = ScriptedInstance(), model.config
    with pytest.raises(ModelLoadError, match="no memory"):
        await model.rearrange(replace(before, default_model_filename="other"), [fine, Failing()])
    assert fine.stopped
    assert (list(model.instances), model.config) == ([old], before)
    caller = ask(model)
    old.answer()
    assert isinstance(caller.answer, InferResponse)
    await model.stop()


async def test_stop_ends_removed_instances() -> None:
    model, (stays, goes) = await started(2)
    ask(model), ask(model)
    await model.rearrange(model.config, [stays])
    await asyncio.wait_for(model.stop(), 60)
    assert goes.stopped


@settings(max_examples=60)
@given(st.lists(st.sampled_from(["ask", "answer", "more", "fewer", "die", "recover"]), max_size=40))
def test_every_request_ends_once_while_instances_change(actions: list[str]) -> None:
    async def run() -> None:
        model, workers = await started(1)
        known, callers = list(workers), []
        for action in actions:
            if action == "ask" and model.ready:
                callers.append(ask(model))
            elif action == "answer":
                for worker in known:
                    if worker.batches and worker.is_ready:
                        worker.answer()
            elif action == "more":
                workers = [*workers, ScriptedInstance()]
                known.append(workers[-1])
                await model.rearrange(model.config, workers)
            elif action == "fewer" and len(workers) > 1:
                workers = workers[1:]
                await model.rearrange(model.config, workers)
            elif action == "die" and workers[0].is_ready:
                workers[0].die()
            elif action == "recover" and not workers[0].is_ready:
                workers[0].recover()
            await turns()
        for worker in workers:
            if not worker.is_ready:
                worker.recover()
        while any(worker.batches for worker in known):
            for worker in known:
                if worker.batches:
                    worker.answer()
            await turns()
        assert [caller.finals for caller in callers] == [1] * len(callers)
        assert all(worker.stopped for worker in known if worker not in workers)
        await model.stop()

    asyncio.run(run())
