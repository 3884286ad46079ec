"""Quantiles of latencies over the last minute, for `--metrics-config=summary_latencies=true`.

DDSketch (Masson, Rim and Lee, VLDB 2019) has a relative error of one percent. As in Prometheus' summaries, quantiles
are of the last minute, count and sum are since the start.
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
    """Summary of durations in nanoseconds."""

    def __init__(self) -> None:
        self.count = 0
        self.ns = 0
        self._recent: deque[tuple[int, DDSketch]] = deque()  # with start times, the latest last

    def __repr__(self) -> str:
        return f"Summary({self.count}, {self.ns} ns)"

    def add(self, ns: int) -> None:
        """Add a duration."""
        self.count += 1
        self.ns += max(ns, 0)
        now = monotonic_ns()
        if not self._recent or now - self._recent[-1][0] >= _MAX_AGE_NS // _AGE_BUCKETS:
            self._expire(now)
            self._recent.append((now, DDSketch(_ACCURACY)))
        self._recent[-1][1].add(max(ns, 0))

    def quantiles_us(self, quantiles: Sequence[float]) -> list[float]:
        """Return the quantiles of the last minute in microseconds, NaN without durations."""
        self._expire(monotonic_ns())
        merged = DDSketch(_ACCURACY)
        for _, sketch in self._recent:
            merged.merge(sketch)
        values = [merged.get_quantile_value(quantile) for quantile in quantiles]
        return [float("nan") if value is None else value / 1000 for value in values]

    def _expire(self, now: int) -> None:
        while self._recent and now - self._recent[0][0] >= _MAX_AGE_NS:
            self._recent.popleft()


@dataclass(slots=True)
class LatencySummaries:
    """Summaries of one model version, with the names of the durations in `ModelStatistics`."""

    success: Summary = field(default_factory=Summary)
    queue: Summary = field(default_factory=Summary)
    compute_input: Summary = field(default_factory=Summary)
    compute_infer: Summary = field(default_factory=Summary)
    compute_output: Summary = field(default_factory=Summary)
    cache_hit: Summary = field(default_factory=Summary)
    cache_miss: Summary = field(default_factory=Summary)
