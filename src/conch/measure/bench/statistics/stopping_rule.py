"""Measure until a percentile is precise: a sequential rule that corrects for repeated looks."""

import numpy as np
from numpy.typing import NDArray

from conch.measure.bench.measurement import Estimate
from conch.measure.bench.records import Records, RequestOutcome
from conch.measure.bench.statistics.quantile_functions import DEFAULT_LEVEL
from conch.measure.bench.statistics.selection import NS
from conch.measure.bench.statistics.time_distribution import percentile_estimate

MIN_REQUESTS = 200
MIN_BEYOND = 20  # requests beyond the percentile
_GROWTH = 1.25  # of the number of requests from look to look


class StoppingRule:
    """Says when the interval of a percentile is within ± `half_width_ratio` of its value.

    A rule that looks often stops at a look whose interval is narrow by chance, and its confidence is lower than it
    says. So look number k uses the confidence 1 - α / (k (k + 1)): the chances of error add up to α = 5 % over any
    number of looks (union bound; Robbins, Annals of Mathematical Statistics 41, 1970). Looks are few, as each takes a
    quarter more requests than the one before.
    """

    def __init__(self, percentile: float, half_width_ratio: float) -> None:
        if not (0 < percentile < 100 and 0 < half_width_ratio < 1):
            raise ValueError(f"expected a percentile and a precision such as p99 ±5%, got {percentile:g}")
        self._percentile = percentile
        self._half_width_ratio = half_width_ratio
        self._looks = 0
        self._next_count = max(MIN_REQUESTS, round(MIN_BEYOND / min(1 - percentile / 100, percentile / 100)))
        self._last: Estimate | None = None

    @property
    def looks(self) -> int:
        """How often the interval was computed."""
        return self._looks

    @property
    def last(self) -> Estimate | None:
        """The percentile at the last look, with the wider interval that is used for the decision."""
        return self._last

    def due(self, count: int) -> bool:
        """Return whether there are enough requests for the next look."""
        return count >= self._next_count

    def is_met(self, records: Records, start_ns: int, now_ns: int) -> bool:
        """Return whether the requests that ended since the start of the window suffice. Cheap between two looks."""
        inside = (records["done_ns"] >= start_ns) & (records["outcome"] == RequestOutcome.OK)
        if not self.due(int(inside.sum())):
            return False
        rows = records[inside]
        values, times = (rows["done_ns"] - rows["intended_ns"]) * NS, (rows["done_ns"] - start_ns) * NS
        return self.look(values, times, (now_ns - start_ns) * NS)

    def look(self, values: NDArray[np.float64], times: NDArray[np.float64], elapsed_s: float) -> bool:
        """Compute the interval of values that were seen at `times` (seconds from the start of the window)."""
        self._looks += 1
        self._next_count = int(len(values) * _GROWTH) + 1
        alpha = (1 - DEFAULT_LEVEL) / (self._looks * (self._looks + 1))
        estimate = percentile_estimate(values, times, (0.0, elapsed_s), self._percentile, 1 - alpha)
        self._last = estimate
        if estimate.low is None or estimate.high is None:
            return False
        return (estimate.high - estimate.low) / 2 <= self._half_width_ratio * estimate.value
