"""Percentiles of times with intervals, and their histogram."""

import math
from collections.abc import Iterable
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from conch.measure.bench.measurement import Estimate, TimeDistribution
from conch.measure.bench.statistics.quantile_functions import DEFAULT_LEVEL, rank_interval, t_quantile
from conch.measure.bench.statistics.time_slices import TimeSlices, effective_count, mean_estimate, slice_times

STANDARD_PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)
BUCKETS_PER_DECADE = 48  # an edge is 4.9 % above the one below it
_MIN_SECONDS = 1e-9


def percentile_key(percentile: float) -> str:
    """Return the key of a percentile in TimeDistribution, such as "99.9"."""
    return f"{percentile:g}"


def time_distribution(
    values: NDArray[np.float64],
    times: NDArray[np.float64],
    window: tuple[float, float],
    percentiles: Iterable[float] = (),
    weights: NDArray[np.float64] | None = None,
) -> TimeDistribution | None:
    """Describe `values` (seconds) that were seen at `times` within a window; None if there are none.

    A value with a weight counts as that number of values, which may have fractions.
    """
    if not len(values):
        return None
    slices = slice_times(times, *window, weights)
    asked = sorted({*STANDARD_PERCENTILES, *percentiles})
    order = np.argsort(values) if weights is not None else None
    ordered = np.sort(values) if order is None else values[order]
    reached = None if weights is None or order is None else np.cumsum(weights[order])
    estimates = {
        percentile_key(percentile): _percentile(percentile / 100, values, ordered, reached, slices, weights)
        for percentile in asked
    }
    return TimeDistribution(
        count=round(slices.total),
        mean=mean_estimate(values, slices, weights),
        percentiles=estimates,
        max=float(ordered[-1]),
        histogram=histogram(ordered, reached),
    )


def percentile_estimate(
    values: NDArray[np.float64],
    times: NDArray[np.float64],
    window: tuple[float, float],
    percentile: float,
    level: float = DEFAULT_LEVEL,
) -> Estimate:
    """Return one percentile with an interval of a given confidence."""
    slices = slice_times(times, *window)
    return _percentile(percentile / 100, values, np.sort(values), None, slices, None, level)


def histogram(
    ordered: NDArray[np.float64], reached: NDArray[np.float64] | None = None
) -> tuple[tuple[float, int], ...]:
    """Return (upper edge, count) of the logarithmic buckets of ascending values that are not empty.

    `reached` are the sums of weights up to each value.
    """
    low = math.floor(math.log10(max(float(ordered[0]), _MIN_SECONDS)) * BUCKETS_PER_DECADE) - 1
    high = math.ceil(math.log10(max(float(ordered[-1]), _MIN_SECONDS)) * BUCKETS_PER_DECADE) + 1
    edges = 10.0 ** (np.arange(low, high + 1) / BUCKETS_PER_DECADE)
    ranks = np.searchsorted(ordered, edges, side="right")
    counted = ranks if reached is None else np.concatenate(([0.0], reached))[ranks].round().astype(np.int64)
    counts = np.diff(counted, prepend=0)
    return tuple((float(edge), int(count)) for edge, count in zip(edges, counts, strict=True) if count)


def _percentile(
    p: float,
    values: NDArray[np.float64],
    ordered: NDArray[np.float64],
    reached: NDArray[np.float64] | None,
    slices: TimeSlices,
    weights: NDArray[np.float64] | None,
    level: float = DEFAULT_LEVEL,
) -> Estimate:
    """Return the smallest value that at least the share `p` does not exceed, and its interval.

    The interval consists of order statistics. Their ranks are those of as many independent values as carry the same
    information as these, which the counts of values above the percentile in slices of time show (Heidelberger and
    Welch, Communications of the ACM 24, 1981; Woodruff, JASA 47, 1952).
    """
    value = float(ordered[_index(p, ordered, reached)])
    above = values > value
    exceeding = np.bincount(
        slices.index[above], None if weights is None else weights[above], minlength=slices.count
    ).astype(np.float64)
    degrees = slices.count - 1
    alpha = 1 - level
    if degrees:  # the number of slices limits how well the dependence is known
        alpha = 2 * (1 - NormalDist().cdf(t_quantile(1 - alpha / 2, degrees)))
    lower, upper = rank_interval(min(effective_count(exceeding, slices), len(values)), p, alpha)
    if upper is None or lower <= 0:
        return Estimate(value)
    one_rank = 1.0 / len(values)  # the lower rank is rounded down, the upper one up
    low = ordered[_index(max(lower - one_rank, 0.0), ordered, reached)]
    high = ordered[_index(min(upper, 1.0), ordered, reached)]
    return Estimate(value, float(min(low, value)), float(max(high, value)))


def _index(share: float, ordered: NDArray[np.float64], reached: NDArray[np.float64] | None) -> int:
    """Return the index of the smallest value up to which lies at least a share of the weight."""
    count = len(ordered)
    if reached is None:
        return min(max(math.ceil(share * count - 1e-9) - 1, 0), count - 1)
    return min(int(np.searchsorted(reached, share * float(reached[-1]) * (1 - 1e-12))), count - 1)
