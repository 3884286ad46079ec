"""The rate limiter: bounds, order of turns, no starvation."""

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
from conch.server.core.scheduling.batching_model import BatchingModel
from conch.server.core.scheduling.rate_limiter import Claim, ModelLimiter, RateLimiter, Resource
from tests.unit.server.core.scripted import Caller, ScriptedInstance, config, dynamic, request


def claim(priority: int = 1, **needs: int) -> Claim:
    return Claim({(name, 0): number for name, number in needs.items()}, priority, lambda: None)


def limiter(*claims: Claim, limits: Sequence[ResourceLimit] = ()) -> RateLimiter:
    made = RateLimiter(limits)
    made.register(claims)
    return made


def limited(needs: Sequence[ResourceNeed] = (), priority: int = 0) -> ScriptedInstance:
    instance = ScriptedInstance()
    instance.plan = replace(instance.plan, rate=RateLimit(tuple(needs), priority))
    return instance


async def model(shared: RateLimiter, *instances: ScriptedInstance, max_batch_size: int = 0) -> BatchingModel:
    model_config = dynamic(max_batch_size) if max_batch_size else config()
    served = BatchingModel(model_config, 1, {}, instances, asyncio.get_running_loop())
    served.limiter = ModelLimiter(shared, instances)
    await served.start()
    return served


# ── resources ──


def test_without_a_limit_each_execution_fits_alone() -> None:
    small, large = claim(R=2), claim(R=4)
    shared = limiter(small, large)
    assert shared.acquire([small]) is small
    assert shared.acquire([large]) is None
    shared.release(small)
    assert shared.acquire([large]) is large


@pytest.mark.parametrize("name", ["R", "r"])
def test_names_of_limits_ignore_case(name: str) -> None:
    first, second, third = (claim(R=2) for _ in range(3))
    shared = limiter(first, second, third, limits=[ResourceLimit(name, 4)])
    assert [shared.acquire([claim]) for claim in (first, second, third)] == [first, second, None]


def test_resources_are_per_device_unless_global() -> None:
    own = [Claim({("R", device): 1}, 1, lambda: None) for device in (0, 1)]
    shared = limiter(*own)
    assert [shared.acquire([claim]) for claim in own] == own
    common = [Claim({("G", None): 1}, 1, lambda: None) for _ in (0, 1)]
    shared.register(common)
    assert [shared.acquire([claim]) for claim in common] == [common[0], None]


def test_limit_for_one_device() -> None:
    limits = [ResourceLimit("R", 1), ResourceLimit("R", 3, device=1)]
    shared = RateLimiter(limits)
    shared.register([Claim({("R", 1): 3}, 1, lambda: None)])
    with pytest.raises(ConfigError, match=r'Resource count for "R" is limited to 1 which will prevent .* count is 3'):
        shared.register([Claim({("R", 0): 3}, 1, lambda: None)])


def test_resource_is_either_global_or_per_device() -> None:
    shared = limiter(claim(R=1))
    with pytest.raises(ConfigError, match='Resource "R" is present as both global and device-specific resource'):
        shared.register([Claim({("R", None): 1}, 1, lambda: None)])


def test_with_limits_the_limit_of_other_resources_is_zero() -> None:
    shared = RateLimiter([ResourceLimit("R", 1)])
    shared.register([claim(R=1)])
    with pytest.raises(ConfigError, match=r'Resource count for "S" is limited to 0 which will prevent .* count is 2'):
        shared.register([claim(S=2)])
    with pytest.raises(ConfigError, match=r'Resource count for "G" is limited to 0'):
        shared.register([Claim({("G", None): 1}, 1, lambda: None)])


def test_larger_of_two_limits_for_a_device_counts() -> None:
    shared = RateLimiter([ResourceLimit("R", 3), ResourceLimit("R", 1, device=1)])
    shared.register([Claim({("R", 1): 3}, 1, lambda: None)])


def test_removed_claim_releases_its_resources() -> None:
    first, second = claim(R=1), claim(R=1)
    shared = limiter(first, second)
    shared.acquire([first])
    assert shared.acquire([second]) is None
    shared.remove([first])
    assert shared.acquire([second]) is second


def test_larger_claim_raises_the_total() -> None:
    woken: list[str] = []
    holder = claim(R=2)
    waiting = Claim({("R", 0): 2}, 1, lambda: woken.append("waiting"))
    shared = limiter(holder, waiting)
    shared.acquire([holder])
    assert shared.acquire([waiting]) is None
    shared.register([claim(R=4)])
    assert woken == ["waiting"]
    assert shared.acquire([waiting]) is waiting


# ── turns ──


def served_in_turn(shared: RateLimiter, claims: Sequence[Claim], executions: int) -> Counter[Claim]:
    """Return how often each claim is granted while all of them are always busy."""
    counts: Counter[Claim] = Counter()
    held: list[Claim] = []

    def ask(each: Claim) -> None:
        if not each.held and shared.acquire([each]) is not None:
            counts[each] += 1
            held.append(each)

    for contender in claims:
        contender.wake = lambda contender=contender: ask(contender)
        ask(contender)
    while sum(counts.values()) < executions:
        oldest = held.pop(0)
        shared.release(oldest)
        ask(oldest)
    return counts


def order_of_service(shared: RateLimiter, claims: Sequence[Claim], executions: int) -> list[Claim]:
    """Return the order of grants of one resource while all claims are always busy."""
    served: list[Claim] = []
    hold = claim(R=1)
    shared.register([hold])
    shared.acquire([hold])

    def ask(each: Claim) -> None:
        if not each.held and shared.acquire([each]) is not None:
            served.append(each)

    for contender in claims:
        contender.wake = lambda contender=contender: ask(contender)
        ask(contender)
    shared.release(hold)
    while len(served) < executions:
        shared.release(served[-1])
    return served


@pytest.mark.parametrize(
    ("priorities", "expected"),
    [
        ((1, 2), "001001001"),
        ((2, 1), "110110110"),
        ((1, 3), "000100010"),
        ((2, 2), "010101010"),
        ((1, 1, 1), "012012012"),
        ((0, 1), "010101010"),
        ((1, 2, 1), "020210202"),
    ],
)
def test_ties_are_served_by_priority_and_then_in_the_order_of_requests(
    priorities: Sequence[int], expected: str
) -> None:
    claims = [claim(priority, R=1) for priority in priorities]
    served = order_of_service(limiter(*claims), claims, len(expected))
    assert "".join(str(claims.index(claim)) for claim in served[: len(expected)]) == expected


def test_idle_claim_accumulates_no_turns_in_order() -> None:
    old, late = claim(R=1), claim(R=1)
    shared = limiter(old, late)
    for _ in range(10):
        shared.acquire([old])
        shared.release(old)
    served = order_of_service(shared, [old, late], 6)
    assert [served.count(claim) for claim in (old, late)] == [3, 3]


@given(st.lists(st.integers(1, 5), min_size=2, max_size=4))
def test_shares_follow_priorities(priorities: list[int]) -> None:
    claims = [claim(priority, R=1) for priority in priorities]
    rounds = 20
    counts = served_in_turn(limiter(*claims), claims, rounds * sum(60 // priority for priority in priorities) // 60 + 1)
    for contender in claims:
        for other in claims:
            assert (
                abs(counts[contender] * contender.priority - counts[other] * other.priority)
                <= contender.priority + other.priority
            )


def test_many_small_claims_do_not_starve_a_large_one() -> None:
    small = [claim(R=1) for _ in range(6)]
    large = claim(R=4)
    counts = served_in_turn(limiter(*small, large), [*small, large], 70)
    assert counts[large] >= 9


def test_idle_claim_accumulates_no_turns() -> None:
    busy, idle = claim(R=1), claim(R=1)
    shared = limiter(busy, idle)
    for _ in range(50):
        shared.acquire([busy])
        shared.release(busy)
    counts = served_in_turn(shared, [busy, idle], 20)
    assert abs(counts[busy] - counts[idle]) <= 2


def test_claims_of_other_resources_are_not_blocked() -> None:
    holder, waiting, other = claim(A=1), claim(A=1), claim(B=1)
    shared = limiter(holder, waiting, other)
    shared.acquire([holder])
    assert shared.acquire([waiting]) is None
    assert shared.acquire([other]) is other


# ── models ──


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


def test_error_names_the_resource_as_the_configuration_does() -> None:
    resource: Resource = ("R1", 0)
    with pytest.raises(ConfigError, match='"R1"'):
        RateLimiter([ResourceLimit("r1", 1)]).register([Claim({resource: 2}, 1, lambda: None)])
