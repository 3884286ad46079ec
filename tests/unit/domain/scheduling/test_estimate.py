"""The estimate of when a request would end: service times by batch size, and instances that become free."""

import heapq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conch.domain.scheduling.estimate import ServiceTimes, start_in
from conch.domain.statistics.model_statistics import BatchStatistics

MS = 1_000_000
SECOND = 1000 * MS


def count(batches: dict[int, BatchStatistics], size: int, ms: float, number: int = 1) -> None:
    """Count executions as the statistics do: a tenth is copying."""
    batch = batches.setdefault(size, BatchStatistics())
    for _ in range(number):
        batch.compute_input.add(int(ms * MS / 10))
        batch.compute_infer.add(int(ms * MS * 8 / 10))
        batch.compute_output.add(int(ms * MS / 10))


def measured(**ms_by_size: float) -> ServiceTimes:
    batches: dict[int, BatchStatistics] = {}
    times = ServiceTimes()
    times.update(batches, SECOND)
    for name, ms in ms_by_size.items():
        count(batches, int(name.removeprefix("of_")), ms)
    times.update(batches, 2 * SECOND)
    return times


def test_nothing_is_known_before_something_was_measured() -> None:
    times = ServiceTimes()
    assert times.of(1, SECOND) == 0
    batches: dict[int, BatchStatistics] = {}
    count(batches, 1, 3000)  # long ago, perhaps the first execution
    times.update(batches, SECOND)
    assert times.of(1, SECOND) == 0
    count(batches, 1, 5)
    times.update(batches, SECOND + 1)
    assert times.of(1, SECOND + 1) == 5 * MS


def test_a_batch_takes_as_long_as_the_largest_smaller_one_that_was_measured() -> None:
    times = measured(of_2=10, of_4=12, of_16=40)
    now = 2 * SECOND
    assert [times.of(size, now) // MS for size in (1, 2, 3, 4, 15, 16, 64)] == [0, 10, 10, 12, 12, 40, 40]


def test_many_executions_outweigh_what_was_before() -> None:
    batches: dict[int, BatchStatistics] = {}
    times = ServiceTimes()
    times.update(batches, SECOND)
    count(batches, 1, 100)
    times.update(batches, 2 * SECOND)
    count(batches, 1, 10, number=4)
    times.update(batches, 3 * SECOND)
    assert times.of(1, 3 * SECOND) == 55 * MS
    count(batches, 1, 10, number=396)
    times.update(batches, 4 * SECOND)
    assert times.of(1, 4 * SECOND) < 11 * MS


def test_evidence_expires_so_that_an_estimate_that_is_too_high_recovers() -> None:
    times = measured(of_1=5000, of_2=10)
    now = 2 * SECOND
    assert times.of(2, now + 3 * SECOND) == 5000 * MS  # of the size 1: that of 2 is too old
    assert times.of(1, now + 20 * SECOND) == 5000 * MS
    assert times.of(1, now + 21 * SECOND) == 0
    batches: dict[int, BatchStatistics] = {}
    count(batches, 1, 5000)
    count(batches, 1, 4)
    times.update(batches, now + 30 * SECOND)
    assert times.of(1, now + 30 * SECOND) == 4 * MS


@pytest.mark.parametrize("size", [8, 4, 16])  # measured before; a smaller and a larger one that were not
@pytest.mark.parametrize("pause_s", [0.1, 60])
def test_a_stalled_execution_counts_little_until_others_take_as_long(size: int, pause_s: float) -> None:
    batches: dict[int, BatchStatistics] = {}
    times = ServiceTimes()
    times.update(batches, SECOND)
    now = 2 * SECOND
    count(batches, 8, 2, number=100)
    times.update(batches, now)
    now += int(pause_s * SECOND)
    count(batches, size, 3000)
    times.update(batches, now)
    assert times.of(64, now) <= 32 * MS
    for _ in range(20):
        now += 3 * SECOND
        count(batches, size, 3000)
        times.update(batches, now)
    assert times.of(64, now) > 2900 * MS


def test_the_counters_are_read_once_in_a_while() -> None:
    batches: dict[int, BatchStatistics] = {}
    times = ServiceTimes()
    times.update(batches, SECOND)
    count(batches, 1, 10)
    times.update(batches, SECOND + MS)
    count(batches, 1, 1000)
    times.update(batches, SECOND + 2 * MS)
    assert times.of(1, SECOND + 2 * MS) == 10 * MS
    times.update(batches, SECOND + 60 * MS)
    assert times.of(1, SECOND + 60 * MS) > 10 * MS


@pytest.mark.parametrize(
    ("free_in", "batches", "expected"),
    [([0], 0, 0), ([7], 0, 7), ([7, 3], 0, 3), ([7, 3], 1, 7), ([7, 3], 2, 13), ([0, 0], 4, 20), ([5], 3, 35)],
)
def test_when_a_batch_starts(free_in: list[int], batches: int, expected: int) -> None:
    assert start_in(free_in, batches, 10) == expected


@given(st.lists(st.integers(0, 30), min_size=1, max_size=5), st.integers(0, 30), st.integers(0, 20))
def test_an_estimate_is_never_later_than_the_start(free_in: list[int], batches: int, batch_ns: int) -> None:
    times = list(free_in)
    heapq.heapify(times)
    for _ in range(batches):
        heapq.heapreplace(times, times[0] + batch_ns)
    assert min(free_in) <= start_in(free_in, batches, batch_ns) <= max(times[0], min(free_in))


def test_a_margin_grows_with_late_executions_and_shrinks_without() -> None:
    times = ServiceTimes()
    assert times.with_margin(100) == 100
    times.ended(late=True)
    assert times.with_margin(100) == 150
    for _ in range(50):
        times.ended(late=True)
    assert times.with_margin(100) == 300
    for _ in range(400):
        times.ended(late=False)
    assert times.with_margin(100) in (199, 200)
    for _ in range(1000):
        times.ended(late=False)
    assert (times.with_margin(100), times.with_margin(0)) == (100, 0)
