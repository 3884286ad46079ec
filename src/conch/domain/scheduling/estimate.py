# Compiled by mypyc in wheels.
"""When a request would end: from recent service times, the requests before it and what the instances execute.

An estimate is a lower bound where something is unknown, so that no request is refused without evidence: a batch takes
at least as long as the largest smaller one that was measured, and one that takes far longer than usual, such as while
its process gets no processor, says little about those behind it. Evidence is short-lived, because requests that are
refused by an estimate that is too high measure nothing: after `_MAX_AGE_NS` the next ones are executed and do.
"""

from collections.abc import Mapping, Sequence
from heapq import heapify, heapreplace
from math import inf
from typing import Final

from conch.domain.statistics.model_statistics import BatchStatistics

_MAX_AGE_NS: Final = 2_000_000_000
_MIN_INTERVAL_NS: Final = 50_000_000
# Executions that weigh as much as all before them.
_HALF_WEIGHT: Final = 4
# Executions count as taking at most this many times what was known; if later ones take as long, the estimate follows.
_MAX_GROWTH: Final = 8.0
# Of executions that begin in time, one of this many may end late.
_IN_TIME_PER_LATE: Final = 200


class ServiceTimes:
    """Recent service times by batch size: how long an instance is occupied.

    Reads the counters of statistics when it is asked, so that executions cost nothing.
    """

    __slots__ = ("_margin", "_read", "_seen", "_times")

    def __init__(self) -> None:
        self._margin = 0.0  # for executions that take longer than usual, in means
        self._read = 0  # when the counters were read last, monotonic ns
        self._seen: dict[int, tuple[int, int]] = {}  # by size: executions, and their ns
        self._times: dict[int, tuple[float, int]] = {}  # by size: ns, and when they were measured

    def __repr__(self) -> str:
        return f"<ServiceTimes {len(self._times)} batch sizes>"

    def update(self, batches: Mapping[int, BatchStatistics], now: int) -> None:
        """Read the counters, unless that was a moment ago. The first time measures nothing: their past may be long."""
        if now - self._read < _MIN_INTERVAL_NS and self._times:
            return
        first = not self._read
        self._read = now
        for size, batch in batches.items():
            count = batch.compute_infer.count
            seen, seen_ns = self._seen.get(size, (0, 0))
            if count == seen:
                continue
            total = batch.compute_input.ns + batch.compute_infer.ns + batch.compute_output.ns
            self._seen[size] = count, total
            if first:
                continue
            mean = min((total - seen_ns) / (count - seen), _MAX_GROWTH * self._usual(size))
            before, measured = self._times.get(size, (mean, now))
            if now - measured <= _max_age_ns(before):
                weight = (count - seen) / (count - seen + _HALF_WEIGHT)
                mean = before + (mean - before) * weight
            self._times[size] = mean, now

    def _usual(self, size: int) -> float:
        """Return the ns that a batch was last known to take, of whatever age, by other sizes if not by its own."""
        if size in self._times:
            return self._times[size][0]
        return min((ns * max(1.0, size / other) for other, (ns, _) in self._times.items()), default=inf)

    def of(self, size: int, now: int) -> int:
        """Return the time of a batch in ns: of the largest measured size up to this one; 0 if there is none."""
        largest, largest_ns = 0, 0.0
        for measured_size, (ns, measured) in self._times.items():
            if largest < measured_size <= size and now - measured <= _max_age_ns(ns):
                largest, largest_ns = measured_size, ns
        return int(largest_ns)

    def ended(self, *, late: bool) -> None:
        """Record whether a request that was executed has met its deadline: late ones begin earlier from now on."""
        self._margin = min(self._margin + 0.5, 2.0) if late else max(self._margin - 0.5 / _IN_TIME_PER_LATE, 0.0)

    def with_margin(self, service: int) -> int:
        """Return how long before its deadline an execution of this time has to begin, so that few are late."""
        return int(service * (1 + self._margin))


def _max_age_ns(service_ns: float) -> float:
    return max(_MAX_AGE_NS, 4 * service_ns)


def start_in(free_in: Sequence[int], batches: int, batch_ns: int) -> int:
    """Return in how many ns a batch starts that `batches` others precede, each of which takes `batch_ns`.

    `free_in` are the ns until each instance is free; not empty.
    """
    rounds, rest = divmod(batches, len(free_in))
    times = list(free_in)
    heapify(times)
    for _ in range(rest):
        heapreplace(times, times[0] + batch_ns)
    return times[0] + rounds * batch_ns
