"""Whether latency has two modes, such as a hit and a miss of a cache."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from conch.measure.bench.statistics.time_distribution import BUCKETS_PER_DECADE

_MIN_REQUESTS = 200
_MIN_SHARE = 0.05  # of the requests in each mode
_MAX_VALLEY = 0.5  # of the lower peak
_MIN_Z = 4.0  # standard errors between valley and peak


def two_modes(histogram: Sequence[tuple[float, int]]) -> tuple[float, float, float] | None:
    """Return (lower mode, higher mode, share of requests in the higher one) of a histogram in logarithmic buckets.

    Two peaks of the smoothed histogram are modes if the valley between them is less than half of the lower peak, and by
    more than chance explains. None if there is one mode, or too few requests to say.
    """
    total = sum(count for _, count in histogram)
    if total < _MIN_REQUESTS:
        return None
    index = np.array([round(math.log10(edge) * BUCKETS_PER_DECADE) for edge, _ in histogram])
    counts = np.zeros(int(index[-1] - index[0]) + 1)
    counts[index - index[0]] = [count for _, count in histogram]
    width = max(_spread(counts) * 1.06 * total**-0.2 / 2, 1.0)  # half of Silverman's rule: two modes are narrower
    kernel = np.exp(-0.5 * np.square(np.arange(-math.ceil(3 * width), math.ceil(3 * width) + 1) / width))
    smooth = np.convolve(counts, kernel / kernel.sum(), mode="same" if len(counts) >= len(kernel) else "full")
    offset = (len(smooth) - len(counts)) // 2
    first = int(np.argmax(smooth))
    best: tuple[float, int, int] | None = None
    for second in _peaks(smooth):
        low, high = sorted((first, second))
        valley = low + int(np.argmin(smooth[low : high + 1]))
        peak, bottom = float(smooth[second]), float(smooth[valley])
        samples = 2 * math.sqrt(math.pi) * width  # the kernel averages over about that number of buckets
        z = (peak - bottom) * math.sqrt(samples) / math.sqrt(max(peak + bottom, 1e-12))
        upper = float(counts[max(valley - offset, 0) :].sum()) / total
        if second == first or bottom > _MAX_VALLEY * peak or z < _MIN_Z or not _MIN_SHARE < upper < 1 - _MIN_SHARE:
            continue
        if best is None or peak > best[0]:
            best = peak, valley, second
    if best is None:
        return None
    low, high = sorted((first, best[2]))
    share = float(counts[max(best[1] - offset, 0) :].sum()) / total
    return _seconds(low - offset + int(index[0])), _seconds(high - offset + int(index[0])), share


def _peaks(smooth: NDArray[np.float64]) -> list[int]:
    padded = np.concatenate(([-1.0], smooth, [-1.0]))
    return np.flatnonzero((padded[1:-1] >= padded[:-2]) & (padded[1:-1] > padded[2:])).tolist()


def _spread(counts: NDArray[np.float64]) -> float:
    at = np.arange(len(counts))
    mean = float((at * counts).sum() / counts.sum())
    return math.sqrt(float((np.square(at - mean) * counts).sum() / counts.sum()))


def _seconds(bucket: int) -> float:
    """Return the middle of a bucket."""
    return float(10 ** ((bucket - 0.5) / BUCKETS_PER_DECADE))
