"""Slices of a window: sums per slice carry the dependence between requests that follow each other.

Latencies in a queue depend on each other, and intervals for independent values would be too narrow. Sums over slices
that are long compared with the memory of the system are nearly independent (batch means: Schmeiser, Operations
Research 30, 1982; Law, Simulation Modeling and Analysis, section 9.5.3).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from conch.measure.bench.measurement import Estimate
from conch.measure.bench.statistics.quantile_functions import DEFAULT_LEVEL, proportion_interval, t_quantile

MAX_SLICES = 20
MIN_SLICES = 8
# Fewer values in a slice say nothing about dependence.
_MIN_PER_SLICE = 5


@dataclass(frozen=True, slots=True)
class TimeSlices:
    """Slices of equal length of the time from `start_s` to `end_s`; `index` is the slice of each value."""

    count: int
    index: NDArray[np.uint8]
    sizes: NDArray[np.float64]
    """Values, or their weights, in each slice."""

    @property
    def total(self) -> float:
        """The sum of `sizes`."""
        return float(self.sizes.sum())


def slice_times(
    times: NDArray[np.float64], start: float, end: float, weights: NDArray[np.float64] | None = None
) -> TimeSlices:
    """Assign times to slices, as many as the values allow; with too few values, there is one slice."""
    count = min(MAX_SLICES, len(times) // _MIN_PER_SLICE)
    if count < MIN_SLICES or end <= start:
        count = 1
    scaled = times - start
    scaled *= count / (end - start) if end > start else 0.0
    index = np.clip(scaled, 0, count - 1, out=scaled).astype(np.uint8)
    return TimeSlices(count, index, np.bincount(index, weights, minlength=count).astype(np.float64))


def mean_estimate(
    values: NDArray[np.float64], slices: TimeSlices, weights: NDArray[np.float64] | None = None
) -> Estimate:
    """Return the mean, its interval from the sums of slices, and at least as wide as of independent values."""
    total, weighted = slices.total, values if weights is None else values * weights
    mean = float(weighted.sum()) / total
    if len(values) < MIN_SLICES:
        return Estimate(mean)
    deviation = values - mean
    if weights is not None:
        deviation *= weights
    independent = float(np.square(deviation).sum())  # not `@`, whose BLAS keeps every core busy
    between, degrees = independent, len(values) - 1
    if slices.count > 1:
        sums = np.bincount(slices.index, deviation, minlength=slices.count)
        between, degrees = float(np.square(sums).sum()) * slices.count / (slices.count - 1), slices.count - 1
    reach = t_quantile((1 + DEFAULT_LEVEL) / 2, degrees) * np.sqrt(max(between, independent)) / total
    return Estimate(mean, mean - float(reach), mean + float(reach))


def rate_estimate(
    times: NDArray[np.float64], start: float, end: float, weights: NDArray[np.float64] | None = None
) -> Estimate:
    """Return the events, or their weights, per second from `start` to `end`; the interval is from equal slices."""
    duration = end - start
    inside = (times >= start) & (times < end)
    kept, weight = times[inside], None if weights is None else weights[inside]
    slices = slice_times(kept, start, end, weight)
    rate = slices.total / duration
    if slices.count == 1:
        return Estimate(rate)
    per_second = slices.sizes * slices.count / duration
    degrees = slices.count - 1
    reach = t_quantile((1 + DEFAULT_LEVEL) / 2, degrees) * float(per_second.std(ddof=1)) / np.sqrt(slices.count)
    return Estimate(rate, max(rate - float(reach), 0.0), rate + float(reach))


def effective_count(above: NDArray[np.float64], slices: TimeSlices) -> float:
    """Return how many independent values would determine a share as well as these dependent ones, at most as many.

    `above` counts, or weighs, the values of each slice that exceed a threshold.
    """
    total = slices.total
    share = float(above.sum()) / total
    if slices.count == 1 or not 0 < share < 1:
        return total
    excess = above - share * slices.sizes
    variance = float(np.square(excess).sum()) * slices.count / (slices.count - 1)
    return total / max(variance / (total * share * (1 - share)), 1.0)


def share_estimate(hits: NDArray[np.bool_], slices: TimeSlices) -> Estimate:
    """Return the share of hits, with the interval of Clopper and Pearson on the effective number of values."""
    counted = np.bincount(slices.index[hits], minlength=slices.count).astype(np.float64)
    share = float(counted.sum()) / slices.total
    if len(hits) < MIN_SLICES:
        return Estimate(share)
    low, high = proportion_interval(share, effective_count(counted, slices), 1 - DEFAULT_LEVEL)
    return Estimate(share, low, high)
