"""Times in which a server answered nothing although requests waited."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_MIN_REQUESTS = 30
_MIN_LATENCY_FACTOR = 10.0  # requests that are executed together end together: not a stall
_MIN_STALL_S = 0.02  # shorter ones are the scheduler's, and in the percentiles
_PERIODIC_VARIATION = 0.2  # of the times between periodic stalls
_MIN_PERIODIC = 4


@dataclass(frozen=True, slots=True)
class Stalls:
    """Pauses in seconds from the start of the run."""

    starts_s: NDArray[np.float64]
    lengths_s: NDArray[np.float64]

    @property
    def total_s(self) -> float:
        """The time lost."""
        return float(self.lengths_s.sum())

    @property
    def period_s(self) -> float | None:
        """The time from one to the next, if they are regular."""
        if len(self.starts_s) < _MIN_PERIODIC:
            return None
        between = np.diff(self.starts_s)
        return float(between.mean()) if between.std() < _PERIODIC_VARIATION * between.mean() else None


def find_stalls(
    intended_s: NDArray[np.float64], done_s: NDArray[np.float64], span: tuple[float, float], median_s: float
) -> Stalls:
    """Return the pauses within a span that chance does not explain.

    The longest of n exponential gaps is about ln(n) mean gaps; a gap counts from ln(n) + 10 of them, which chance
    exceeds once in 20,000 runs, from ten medians of latency, and from 20 ms. The mean is the median gap / ln 2, which
    stalls do not move. Requests must have been in flight in the middle of the gap.
    """
    every = np.sort(done_s)
    ended = every[np.searchsorted(every, span[0]) : np.searchsorted(every, span[1])]
    none = np.zeros(0)
    if len(ended) < _MIN_REQUESTS:
        return Stalls(none, none)
    gaps = np.diff(ended, append=span[1])
    typical = max(float(np.median(gaps)) / math.log(2), (span[1] - span[0]) / len(ended) / 4)
    bound = max(typical * (math.log(len(gaps)) + 10), _MIN_LATENCY_FACTOR * median_s, _MIN_STALL_S)
    long = np.flatnonzero(gaps > bound)
    if not len(long):
        return Stalls(none, none)
    middle = ended[long] + gaps[long] / 2
    due = np.searchsorted(np.sort(intended_s), middle, side="right")
    answered = np.searchsorted(every, middle, side="right")
    long = long[due > answered]
    return Stalls(ended[long], gaps[long])
