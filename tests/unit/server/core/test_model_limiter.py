"""Models whose instances claim resources of the rate limiter."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conch.base.command_line.flag_values import ResourceLimit
from conch.base.errors import ConfigError
from conch.domain.model_config import RateLimit, ResourceNeed
from conch.domain.scheduling.rate_limiter import RateLimiter
from conch.server.core.scheduling.batching_model import BatchingModel
from conch.server.core.scheduling.model_limiter import ModelLimiter
from conch.server.observability.event_log import EventRecorder, ModelEvents
from conch.server.observability.event_reading import EventReader
from tests.unit.server.core.scripted import Caller, ScriptedInstance, config, dynamic, request


def limited(needs: Sequence[ResourceNeed] = (), priority: int = 0) -> ScriptedInstance:
    instance = ScriptedInstance()
    instance.plan = replace(instance.plan, rate=RateLimit(tuple(needs), priority))
    return instance


async def model(
    shared: RateLimiter, *instances: ScriptedInstance, max_batch_size: int = 0, events: ModelEvents | None = None
) -> BatchingModel:
    model_config = dynamic(max_batch_size) if max_batch_size else config()
    served = BatchingModel(model_config, 1, {}, instances, asyncio.get_running_loop())
    served.limiter = ModelLimiter(shared, instances)
    served.events = events or served.events
    await served.start()
    return served


async def test_waits_for_a_resource_are_in_the_event_log() -> None:
    shared, recorder = RateLimiter(), EventRecorder(2**20)
    workers = [limited([ResourceNeed("R", 1)]) for _ in range(2)]
    first = await model(shared, workers[0], events=ModelEvents(recorder, "first", 1))
    second = await model(shared, workers[1], events=ModelEvents(recorder, "second", 1))
    first.submit(request(), Caller())
    second.submit(request(), Caller())
    unfinished = [row for kind, row in second.unfinished() if kind == "holds"]
    assert [(row.model, row.holder, row.ended) for row in unfinished] == [("second", "m", 0)]
    workers[0].answer()
    workers[1].answer()
    log = EventReader(recorder).read(60)
    (hold,) = log.holds
    (waited,) = log.requests[log.requests["model"] == log.names.index("second")]
    assert log.names[hold["model"]] == "second"
    assert waited["queued"] <= hold["started"] < hold["ended"] <= waited["started"]
    assert not [kind for kind, _ in second.unfinished()]


@pytest.mark.parametrize(("counts", "needed"), [((1, 2), 2), ((2, 1), 1), ((3, 3), 3), ((1, 2, 1), 1)])
async def test_the_last_count_of_a_resource_applies_as_in_triton(counts: tuple[int, ...], needed: int) -> None:
    shared = RateLimiter([ResourceLimit("Q", 1, None)])
    with pytest.raises(ConfigError, match=f"the minimum required count is {needed}:"):
        await model(shared, limited([ResourceNeed("R", count) for count in counts]))


async def test_models_that_share_a_resource_take_turns() -> None:
    shared = RateLimiter()
    need = [ResourceNeed("R", 1)]
    workers = [limited(need), limited(need)]
    first, second = [await model(shared, worker) for worker in workers]
    callers = [Caller() for _ in range(4)]
    for target, caller in zip((first, first, second, second), callers, strict=True):
        target.submit(request(), caller)
    order = []
    while any(worker.batches for worker in workers):
        (active,) = [worker for worker in workers if worker.batches]  # never two at once
        order.append(workers.index(active))
        active.answer()
        await asyncio.sleep(0)
    assert order == [0, 1, 0, 1]
    assert all(caller.finals == 1 for caller in callers)


async def test_instance_of_the_cheaper_group_runs_while_the_other_has_to_wait() -> None:
    shared = RateLimiter([ResourceLimit("R", 4)])
    blocker = limited([ResourceNeed("R", 3)])
    greedy, modest = limited([ResourceNeed("R", 4)]), limited([ResourceNeed("R", 1)])
    other, both = await model(shared, blocker), await model(shared, greedy, modest)
    other.submit(request(), Caller())
    both.submit(request(), Caller())
    assert (len(greedy.batches), len(modest.batches)) == (0, 1)


async def test_stop_of_a_model_releases_its_resources() -> None:
    shared = RateLimiter()
    first, second = limited([ResourceNeed("R", 1)]), limited([ResourceNeed("R", 1)])
    stopping, staying = await model(shared, first), await model(shared, second)
    stopping.submit(request(), Caller())
    caller = Caller()
    staying.submit(request(), caller)
    assert second.batches == []
    await stopping.stop()
    second.answer()
    assert caller.finals == 1


async def test_model_whose_claim_exceeds_the_limit_is_not_started() -> None:
    worker = limited([ResourceNeed("R", 5)])
    with pytest.raises(ConfigError, match='"R" is limited to 4'):
        await model(RateLimiter([ResourceLimit("R", 4)]), worker)
    assert not worker.is_ready


NEEDS = st.lists(
    st.builds(ResourceNeed, st.sampled_from(["A", "B"]), st.integers(0, 3)),
    max_size=2,
    unique_by=lambda need: need.name,
)
MODELS = st.lists(
    st.lists(st.tuples(NEEDS, st.integers(0, 3)), min_size=1, max_size=2), min_size=1, max_size=3
)  # instances with what they need and their priority
STEPS = st.lists(
    st.tuples(st.sampled_from(["submit", "answer", "fail", "cancel", "die", "recover"]), st.integers(0, 9)), max_size=60
)


@given(MODELS, st.none() | st.integers(3, 6), st.sampled_from([0, 4]), STEPS)
def test_random_schedules(
    plans: list[list[tuple[list[ResourceNeed], int]]],
    limit: int | None,
    max_batch_size: int,
    steps: list[tuple[str, int]],
) -> None:
    """Usage never exceeds the totals, no request waits without need, and every request ends."""

    async def schedule() -> None:
        limits = [] if limit is None else [ResourceLimit("A", limit), ResourceLimit("B", limit)]
        shared = RateLimiter(limits)
        workers = [[limited(needs, priority) for needs, priority in plan] for plan in plans]
        models = [await model(shared, *group, max_batch_size=max_batch_size) for group in workers]
        flat = [worker for group in workers for worker in group]
        callers: list[Caller] = []
        admitted = []

        def total(name: str) -> int:
            return limit or max((n.count for w in flat for n in w.plan.rate.resources if n.name == name), default=0)

        def used() -> Counter[str]:
            return Counter(
                dict.fromkeys("AB", 0)
                | Counter(n.name for w in flat if w.batches for n in w.plan.rate.resources for _ in range(n.count))
            )

        def check() -> None:
            now = used()
            assert all(now[name] <= total(name) for name in "AB")
            if not any(worker.batches for worker in flat):  # all resources are free: no request has to wait
                for served, own in zip(models, workers, strict=True):
                    assert not (served.statistics.pending and any(w.is_ready for w in own))

        for what, number in steps:
            worker = flat[number % len(flat)]
            if what == "submit":
                callers.append(Caller())
                served = models[number % len(models)]
                if served.ready:
                    sent = request(1, 2) if max_batch_size else request()
                    admitted.append(served.submit(sent, callers[-1]))
                else:
                    callers.pop()
            elif what == "answer" and worker.batches:
                worker.answer()
            elif what == "fail" and worker.batches:
                worker.fail()
            elif what == "cancel" and admitted:
                admitted[number % len(admitted)].cancel()
            elif what == "die" and worker.is_ready:
                worker.die()
            elif what == "recover" and not worker.is_ready:
                worker.recover()
            await asyncio.sleep(0)
            check()
        for worker in flat:
            if not worker.is_ready:
                worker.recover()
        while any(worker.batches for worker in flat):
            next(worker for worker in flat if worker.batches).answer()
            await asyncio.sleep(0)
            check()
        assert all(caller.finals == 1 for caller in callers)
        for served in models:
            await served.stop()

    asyncio.run(schedule())
