# Compiled by mypyc in wheels.
"""How late a process of the load generator is: times in a histogram, and waits for a processor."""

from typing import Final

from conch.base.process.process_stat import CpuWait

_SUB_BITS: Final = 3
_SUB_BUCKETS: Final = 1 << _SUB_BITS
BUCKETS: Final = 64 * _SUB_BUCKETS


class LagHistogram:
    """Counts of times in nanoseconds, in logarithmic buckets."""

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS

    def add(self, time_ns: int, count: int = 1) -> None:
        """Count a time `count` times; negative ones count as 0."""
        if time_ns < _SUB_BUCKETS:
            self.counts[max(0, time_ns)] += count
            return
        shift = time_ns.bit_length() - 1 - _SUB_BITS
        self.counts[(shift << _SUB_BITS) + (time_ns >> shift)] += count

    def take(self) -> list[tuple[int, int]]:
        """Return (bucket, count) where the count is not 0, and begin again."""
        counts = [(bucket, count) for bucket, count in enumerate(self.counts) if count]
        self.counts = [0] * BUCKETS
        return counts


def upper_edge_ns(bucket: int) -> int:
    """Return the time below which all times of a bucket lie."""
    if bucket < 2 * _SUB_BUCKETS:
        return bucket + 1
    shift = (bucket >> _SUB_BITS) - 1
    return ((bucket & (_SUB_BUCKETS - 1)) + _SUB_BUCKETS + 1) << shift


def percentile_s(counts: dict[int, int], share: float) -> float:
    """Return the time in seconds that this share of the times does not exceed, 0 without times."""
    total = sum(counts.values())
    passed = 0
    for bucket in sorted(counts):
        passed += counts[bucket]
        if passed >= share * total:
            return upper_edge_ns(bucket) / 1e9 if bucket else 0.0
    return 0.0


class CpuWaits:
    """The kernel's run-queue delay of this thread. `total_ns` is None where the kernel does not count it.

    A closed loop has no schedule that it could be late for: a process that waits for a processor reads answers late
    instead, and the wait is in their latency.
    """

    def __init__(self) -> None:
        self._wait = CpuWait()
        self.histogram = LagHistogram()
        self.total_ns = self._wait.total_ns()

    def read(self, answers: int) -> None:
        """Count the wait since the call before, once for each of `answers` that were read meanwhile."""
        before, self.total_ns = self.total_ns, self._wait.total_ns()
        if before is not None and self.total_ns is not None and answers:
            self.histogram.add(self.total_ns - before, answers)
