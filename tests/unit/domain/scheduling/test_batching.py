"""The batching decision, rule by rule and against a simple implementation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conch.domain.scheduling.batching import BatchRules, Run, Wait, decide
from conch.domain.scheduling.waiting import Waiting
from tests.unit.server.core.scripted import config, dynamic

US = 1000


def request(batch_size: int, group_key: object, queued: int) -> Waiting:
    made = Waiting(batch_size)
    made.group_key, made.queued = group_key, queued
    return made


def waiting(*sizes: int, queued: int = 0, keys: str = "") -> list[Waiting]:
    return [request(size, keys[i : i + 1], queued) for i, size in enumerate(sizes)]


def test_without_dynamic_batching_requests_run_one_by_one() -> None:
    assert decide(waiting(3, 1), BatchRules.of(config(max_batch_size=8)), 5) == Run(1, "single")


def test_dynamic_batching_without_a_batch_dimension_runs_one_by_one() -> None:
    assert decide(waiting(1, 1), BatchRules.of(dynamic(0)), 5) == Run(1, "single")


def test_without_delay_all_that_fits_runs() -> None:
    assert decide(waiting(1, 2, 3), BatchRules.of(dynamic(8)), 5) == Run(3, "idle")


def test_a_request_is_never_split_nor_overtaken() -> None:
    assert decide(waiting(5, 4, 1), BatchRules.of(dynamic(8)), 5) == Run(1, "closed")


def test_a_full_batch_does_not_wait() -> None:
    rules = BatchRules.of(dynamic(4, max_queue_delay_us=1000))
    assert decide(waiting(2, 2, 2), rules, 5) == Run(2, "full")


def test_a_preferred_size_runs_at_once_and_leaves_the_rest() -> None:
    rules = BatchRules.of(dynamic(8, max_queue_delay_us=1000, preferred_batch_sizes=(4, 8)))
    assert decide(waiting(1, 1, 1, 1, 1, 1), rules, 5) == Run(4, "preferred")


def test_an_unpreferred_size_waits_for_the_oldest_to_be_overdue() -> None:
    rules = BatchRules.of(dynamic(8, max_queue_delay_us=100, preferred_batch_sizes=(4, 8)))
    assert decide(waiting(1, 1, queued=7), rules, 50) == Wait(7 + 100 * US)
    assert decide(waiting(1, 1, queued=7), rules, 7 + 100 * US) == Run(2, "delay over")


def test_other_shapes_close_a_batch() -> None:
    rules = BatchRules.of(dynamic(8, max_queue_delay_us=100))
    assert decide(waiting(1, 1, 1, keys="aab"), rules, 5) == Run(2, "closed")


PREFERRED = dynamic(8, max_queue_delay_us=100, preferred_batch_sizes=(2, 6))


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((2,), [2]),
        ((6,), [6]),
        ((7,), [7]),  # at least the largest preferred size
        ((8,), [8]),
        ((1,), []),
        ((3,), []),
        ((3, 7), [3, 7]),  # would jump over the largest preferred size, and beyond what fits
        ((3, 4), [3]),
        ((1, 1), [2]),
        ((1, 3), []),
        ((1, 6), [1, 6]),
        ((1, 5), [6]),
        ((5, 5), [5]),
        ((3, 4, 1), [3]),
        ((1, 7), [1, 7]),
        ((1, 1, 1), [2]),
        ((2, 2, 2, 2), [6, 2]),
        ((4, 4, 4), [4, 4]),
    ],
)
def test_batches_of_mixed_requests_are_those_of_triton(sizes: tuple[int, ...], expected: list[int]) -> None:
    """Executions before the oldest request is overdue, as Triton 2.51 makes them of requests that come one by one."""
    rules = BatchRules.of(PREFERRED)
    queue, runs = waiting(*sizes), []
    while queue and isinstance(decision := decide(queue, rules, 5), Run):
        runs.append(sum(entry.batch_size for entry in queue[: decision.number]))
        queue = queue[decision.number :]
    assert runs == expected


def test_overdue_batch_takes_all_that_fits() -> None:
    rules = BatchRules.of(PREFERRED)
    assert decide(waiting(3, 4, 1), rules, 100 * US) == Run(3, "full")
    assert decide(waiting(1, 1, 1, 1, 1), rules, 100 * US) == Run(5, "delay over")


@pytest.mark.parametrize(
    ("sizes", "run"),
    [
        ((3, 3), Run(2, "preferred")),
        ((5, 3), Run(1, "closed")),
        ((1,) * 9, Run(4, "preferred")),
        ((1,) * 6, Run(4, "preferred")),
        ((3, 1, 1), Run(2, "preferred")),
    ],
)
def test_without_delay_a_batch_grows_up_to_the_largest_preferred_size(sizes: tuple[int, ...], run: Run) -> None:
    assert decide(waiting(*sizes), BatchRules.of(dynamic(8, preferred_batch_sizes=(4,))), 5) == run


@pytest.mark.parametrize("delay", [0, 100])
def test_other_shapes_close_a_batch_that_has_not_reached_a_preferred_size(delay: int) -> None:
    rules = BatchRules.of(dynamic(8, max_queue_delay_us=delay, preferred_batch_sizes=(4, 6)))
    assert decide(waiting(1, 1, 1, 1, 1, keys="aaabb"), rules, 5) == Run(3, "closed")
    assert decide(waiting(1, 1, 1, 1, 1, 1, keys="aaaaab"), rules, 5) == Run(4, "preferred")


@given(
    st.lists(st.tuples(st.integers(1, 8), st.sampled_from("ab"), st.integers(0, 100)), min_size=1, max_size=20),
    st.integers(0, 50),
    st.sets(st.integers(1, 8)),
    st.integers(100, 200),
)
def test_any_run_fits_and_any_wait_ends(
    queue: list[tuple[int, str, int]], delay: int, preferred: set[int], now: int
) -> None:
    rules = BatchRules(8, frozenset(preferred), delay, single=False, largest_preferred=max(preferred, default=8))
    entries = [request(*entry) for entry in queue]
    decision = decide(entries, rules, now)
    if isinstance(decision, Wait):
        assert delay > 0
        assert now < decision.until <= now + delay
        assert sum(entry.batch_size for entry in entries) < rules.largest_preferred
    else:
        taken = entries[: decision.number]
        assert len(taken) >= 1
        assert len(taken) == 1 or sum(entry.batch_size for entry in taken) <= 8
        assert len({entry.group_key for entry in taken}) == 1
