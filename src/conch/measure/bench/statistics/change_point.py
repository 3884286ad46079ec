"""Tests for a change of the mean within a series of dependent values: at one point, and along a line."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from conch.measure.bench.statistics.quantile_functions import t_quantile

CRITICAL_CHANGE = 84.6
"""The value that G exceeds in 0.5 % of steady series (Shao and Zhang, table 1)."""
_MIN_SIDE = 0.1  # of the series, on each side of a change


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """The most likely change: the mean is `before` for `index` values and `after` for the others."""

    index: int
    statistic: float
    before: float
    after: float


def find_change(series: NDArray[np.float64]) -> ChangePoint | None:
    """Return the most likely change of the mean with its statistic G; None for fewer than six values.

    G is self-normalized: it divides by the fluctuation of the series itself on both sides of the change, so that it
    needs no estimate of the dependence between values (Shao and Zhang, Testing for Change Points in Time Series, JASA
    105, 2010).
    """
    size = len(series)
    if size < 6:
        return None
    margin = max(int(size * _MIN_SIDE), 2)
    sums = np.cumsum(series)
    best = ChangePoint(0, -1.0, 0.0, 0.0)
    for k in range(margin, size - margin + 1):
        left, right = sums[k - 1] / k, (sums[-1] - sums[k - 1]) / (size - k)
        forward = sums[:k] - left * np.arange(1, k + 1)
        backward = (sums[-1] - np.concatenate(([sums[k - 1]], sums[k:-1]))) - right * np.arange(size - k, 0, -1)
        spread = (float(np.square(forward).sum()) + float(np.square(backward).sum())) / size**2
        difference = (k * (size - k) / size**1.5) * (left - right)
        statistic = float(difference**2 / spread) if spread > 0 else (np.inf if difference else 0.0)
        if statistic > best.statistic:
            best = ChangePoint(k, statistic, float(left), float(right))
    return best


def trend_statistic(series: NDArray[np.float64]) -> float:
    """Return the slope of the least-squares line divided by its standard error and by the bound of 0.5 % on both sides.

    More than 1 or less than -1 is a trend. The error accounts for values that follow each other as an autoregressive
    process of order 1 around a cubic, with the coefficient corrected for bias (Kendall, Biometrika 41, 1954). The test
    for a change at one point does not see a line: its denominator grows with it.
    """
    size = len(series)
    if size < 8:
        return 0.0
    at = np.arange(size) - (size - 1) / 2
    norm = float(np.square(at).sum())
    slope = float((at * series).sum()) / norm
    basis, _ = np.linalg.qr(np.vander(at / size, 4))
    variance, degrees = _long_run_variance(series - basis @ (basis.T @ series), 4)
    return _relative(slope, variance / norm, degrees)


def head_statistic(series: NDArray[np.float64]) -> float:
    """Return the difference between the first tenth and the second half, scaled as by `trend_statistic`.

    A short warm-up changes few values, which the other tests may not see.
    """
    size = len(series)
    if size < 16:
        return 0.0
    head, tail = series[: max(size // 10, 2)], series[size // 2 :]
    variance, degrees = _long_run_variance(tail - tail.mean(), 1)
    return _relative(float(head.mean() - tail.mean()), variance * (1 / len(head) + 1 / len(tail)), degrees)


def _long_run_variance(rest: NDArray[np.float64], parameters: int) -> tuple[float, int]:
    """Return the variance of sums per value, of residuals of a fit, and its degrees of freedom."""
    size = len(rest)
    energy = float(np.square(rest).sum())
    raw = float((rest[1:] * rest[:-1]).sum()) / energy if energy > 0 else 0.0
    coefficient = min(max(raw + (parameters + 4 * raw) / size, 0.0), 0.9)
    inflation = (1 + coefficient) / (1 - coefficient)
    return energy / (size - parameters) * inflation, max(int(size / inflation) - 2, 4)


def _relative(value: float, variance: float, degrees: int) -> float:
    """Return a value divided by the bound that chance exceeds in 0.5 %; rounding alone is not a deviation."""
    error = math.sqrt(variance) * t_quantile(0.9975, degrees)
    return value / max(error, 1e-9)
