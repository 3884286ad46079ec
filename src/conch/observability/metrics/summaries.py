"""Quantiles of latencies over the last minute: what `--metrics-config summary_latencies=true` adds to the counters.

A quantile is right to one percent of its value: DDSketch (Masson, Rim and Lee, VLDB 2019). Like Prometheus' own
summaries, whose age and buckets these are, they tell of the last minute, and of count and sum since the start.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic_ns

from ddsketch import DDSketch

_ACCURACY = 0.01
_MAX_AGE_NS = 60_000_000_000
_AGE_BUCKETS = 5


class Summary:
    """Durations in nanoseconds."""

    def __init__(self) -> None:
        self.count = 0
        self.ns = 0
        self._recent: deque[tuple[int, DDSketch]] = deque()  # each with when it began, the newest last

    def __repr__(self) -> str:
        return f"Summary({self.count}, {self.ns} ns)"

    def add(self, ns: int) -> None:
        """Take one more."""
        self.count += 1
        self.ns += max(ns, 0)
        now = monotonic_ns()
        if not self._recent or now - self._recent[-1][0] >= _MAX_AGE_NS // _AGE_BUCKETS:
            self._forget(now)
            self._recent.append((now, DDSketch(_ACCURACY)))
        self._recent[-1][1].add(max(ns, 0))

    def quantiles_us(self, wanted: Sequence[float]) -> list[float]:
        """Return the quantiles of the last minute in microseconds, NaN where nothing happened in it."""
        self._forget(monotonic_ns())
        together = DDSketch(_ACCURACY)
        for _, sketch in self._recent:
            together.merge(sketch)
        found = [together.get_quantile_value(quantile) for quantile in wanted]
        return [float("nan") if value is None else value / 1000 for value in found]

    def _forget(self, now: int) -> None:
        while self._recent and now - self._recent[0][0] >= _MAX_AGE_NS:
            self._recent.popleft()


@dataclass(slots=True)
class LatencySummaries:
    """Those of one model version; the names are those of the counters in `ModelStatistics`."""

    success: Summary = field(default_factory=Summary)
    queue: Summary = field(default_factory=Summary)
    compute_input: Summary = field(default_factory=Summary)
    compute_infer: Summary = field(default_factory=Summary)
    compute_output: Summary = field(default_factory=Summary)
    cache_hit: Summary = field(default_factory=Summary)
    cache_miss: Summary = field(default_factory=Summary)
