"""Degradations that develop while a model runs, found from its counters."""

import asyncio
from dataclasses import replace
from time import monotonic_ns

import pytest

from conch.server.core import model_watch
from conch.server.core.model_watch import Counters, ModelWatch, batchable_alone
from conch.server.core.scheduling.batching_model import BatchingModel
from tests.unit.server.core.scripted import ScriptedInstance, dynamic

US = 1000


def change(**values: int) -> Counters:
    empty = dict.fromkeys(Counters.__slots__, 0) | {"taken_ns": 1_000_000 * US}
    return Counters(**{**empty, "requests": 2000, "inferences": 2000, "executions": 2000, **values})


async def model(delay_us: int = 0, instances: int = 1) -> BatchingModel:
    workers = [ScriptedInstance() for _ in range(instances)]
    made = BatchingModel(dynamic(8, max_queue_delay_us=delay_us), 1, {}, workers, asyncio.get_running_loop())
    await made.start()
    return made


@pytest.mark.parametrize(
    ("values", "delay_us", "reported"),
    [
        ({"queue_ns": 2000 * 1500 * US, "compute_ns": 2000 * 500 * US}, 0, True),  # three at a time in a second
        ({"queue_ns": 2000 * 500 * US, "compute_ns": 2000 * 500 * US}, 0, False),  # one
        ({"queue_ns": 2000 * 900 * US, "compute_ns": 2000 * 100 * US}, 0, False),  # too rare, and slow to be woken
        ({"queue_ns": 2000 * 900 * US, "compute_ns": 2000 * 500 * US}, 100, False),  # the delay costs little
        ({"queue_ns": 2000 * 400 * US, "compute_ns": 2000 * 300 * US}, 400, True),  # each waited for a long delay
        ({"queue_ns": 2000 * 20 * US, "compute_ns": 2000 * 300 * US}, 400, False),
        ({"queue_ns": 2000 * 1500 * US, "compute_ns": 2000 * US, "executions": 1990}, 0, False),  # some shared one
        ({"queue_ns": 2000 * 1500 * US, "compute_ns": 2000 * US, "inferences": 12000}, 0, False),  # clients batch
        ({"queue_ns": 900 * 9000 * US, "requests": 900, "executions": 900, "inferences": 900}, 0, False),  # too few
    ],
)
async def test_batches_that_never_form(values: dict[str, int], delay_us: int, reported: bool) -> None:
    counted = change(**values)
    assert bool(batchable_alone(await model(delay_us), counted, counted)) is reported


async def test_without_batching_nothing_is_missed() -> None:
    served = await model()
    served.config = replace(served.config, dynamic_batching=None)
    counted = change(queue_ns=2000 * 1500 * US, compute_ns=2000 * US)
    assert batchable_alone(served, counted, counted) == ""


async def test_one_sample_of_waiting_is_not_reported() -> None:
    """A machine that stands still for seconds makes requests wait, which are executed alone afterwards."""
    served = await model()
    watch = ModelWatch(lambda: [served], lambda *_: None, lambda *_: None)

    def sampled(waited_ns: int) -> list[str]:
        statistics = served.statistics
        statistics.success.count += 2000
        statistics.inference_count += 2000
        statistics.execution_count += 2000
        statistics.queue.ns += waited_ns
        watch.sample()
        return [degradation.reason for degradation in watch.degradations()]

    minute_ns = 60 * 10**9
    waits = (0, minute_ns, 0, minute_ns, minute_ns, minute_ns, 0)
    reported = [sampled(waited_ns) for waited_ns in waits]
    assert reported == [[], [], [], [], ["batches_never_form"], ["batches_never_form"], []]


async def test_samples_of_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    served = await model(instances=2)
    events: list[tuple[str, str, str]] = []
    logged: list[str] = []
    watch = ModelWatch(lambda: [served], lambda *event: events.append(event), lambda reason, _: logged.append(reason))

    def sampled() -> list[str]:
        watch.sample()
        return [degradation.reason for degradation in watch.degradations()]

    assert sampled() == []
    served.statistics.cache_miss.count = model_watch.MIN_REQUESTS
    served.instances[0].die()
    assert sampled() == ["cache_never_hit"]  # the instance may be ready again at the next sample
    assert sampled() == ["instances_missing", "cache_never_hit"]
    served.instances[0].recover()
    served.statistics.cache_hit.count = 1
    assert sampled() == []
    assert logged == ["cache_never_hit", "instances_missing"]
    monkeypatch.setattr(ScriptedInstance, "restarts", 3)
    assert sampled() == []
    assert events == [("process_restarted", "a process of model 'm' exited and was started again", "m")]


@pytest.mark.parametrize(("limit_s", "usual_s", "named"), [(0, 0, 61), (0, 30, 301), (5, 30, 6)])
async def test_worker_without_progress(limit_s: int, usual_s: int, named: int, monkeypatch: pytest.MonkeyPatch) -> None:
    served = await model()
    served.statistics.execution_count, served.statistics.compute_infer.ns = 2, 2 * usual_s * 10**9
    reasons: list[str] = []
    replaced: list[str] = []
    watch = ModelWatch(lambda: [served], lambda *_: None, lambda _, detail: reasons.append(detail), limit_s)
    watch.sample()
    monkeypatch.setattr(ScriptedInstance, "replace", lambda _, why: replaced.append(why))
    for waited_s, is_reported in ((0, False), (named - 2, False), (named, True)):
        since = monotonic_ns() - waited_s * 10**9 if waited_s else 0
        monkeypatch.setattr(ScriptedInstance, "working_since", since)
        watch.sample()
        assert [degradation.reason for degradation in watch.degradations()] == ["no_progress"] * is_reported
    assert reasons == [f"instance 'm_0' of model 'm' has requests, but it made no progress for {named} s"]
    assert replaced == [f"it made no progress for {named} s (--hang-timeout-secs=5)"] * bool(limit_s)


async def test_a_replaced_model_is_forgotten() -> None:
    old, new = await model(), await model()
    models = [old]
    watch = ModelWatch(lambda: models, lambda *_: None, lambda *_: None)
    watch.sample()
    old.statistics.cache_miss.count = model_watch.MIN_REQUESTS
    watch.sample()
    assert len(list(watch.degradations())) == 1
    models[:] = [new]
    assert list(watch.degradations()) == []
    watch.sample()
    assert list(watch.degradations()) == []
