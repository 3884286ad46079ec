"""The rate limiter: bounds, order of turns, no starvation."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conch.base.command_line.flag_values import ResourceLimit
from conch.base.errors import ConfigError
from conch.domain.scheduling.rate_limiter import Claim, RateLimiter, Resource


def claim(priority: int = 1, **needs: int) -> Claim:
    return Claim({(name, 0): number for name, number in needs.items()}, priority, lambda: None)


def limiter(*claims: Claim, limits: Sequence[ResourceLimit] = ()) -> RateLimiter:
    made = RateLimiter(limits)
    made.register(claims)
    return made


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

    def ask(claimant: Claim) -> None:
        if not claimant.held and shared.acquire([claimant]) is not None:
            counts[claimant] += 1
            held.append(claimant)

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

    def ask(claimant: Claim) -> None:
        if not claimant.held and shared.acquire([claimant]) is not None:
            served.append(claimant)

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


def test_error_names_the_resource_as_the_configuration_does() -> None:
    resource: Resource = ("R1", 0)
    with pytest.raises(ConfigError, match='"R1"'):
        RateLimiter([ResourceLimit("r1", 1)]).register([Claim({resource: 2}, 1, lambda: None)])
