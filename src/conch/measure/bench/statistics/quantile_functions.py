"""Distribution functions that intervals need: incomplete beta, Student's t, ranks of order statistics."""

import math
from collections.abc import Callable
from functools import lru_cache
from statistics import NormalDist

DEFAULT_LEVEL = 0.95
# From this variance of a binomial count on, its normal approximation moves an interval by less than a rank in ten.
_NORMAL_VARIANCE = 400.0
_MAX_ITERATIONS = 10_000


def normal_quantile(probability: float) -> float:
    """Return the value that a standard normal variable stays below with a probability."""
    return NormalDist().inv_cdf(probability)


@lru_cache(1024)
def t_quantile(probability: float, degrees: int) -> float:
    """Return the quantile of Student's t distribution, for probabilities of at least a half."""
    if degrees > 2000:
        return normal_quantile(probability)
    return _root(lambda t: _t_cdf(t, degrees) - probability, 0.0, 1e6)


def regularized_beta(a: float, b: float, x: float) -> float:
    """Return the regularized incomplete beta function I_x(a, b), by Lentz's continued fraction (DLMF 8.17.22)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1.0 - regularized_beta(b, a, 1.0 - x)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return min(math.exp(log_front) / a * _fraction(a, b, x), 1.0)


def rank_interval(count: float, p: float, alpha: float) -> tuple[float, float | None]:
    """Return the ranks, as shares of `count` independent values, between which the quantile `p` lies.

    The order statistics of these ranks enclose the quantile with probability 1 - alpha whatever the distribution, since
    the number of values below it is binomial (David and Nagaraja, Order Statistics, 2003, section 7.1). `count` may be
    the effective number of dependent values. The upper rank is None if even the largest value is not safe.
    """
    variance = count * p * (1 - p)
    if variance > _NORMAL_VARIANCE:
        reach = normal_quantile(1 - alpha / 2) * math.sqrt(variance) / count
        return max(p - reach, 0.0), min(p + reach + 1 / count, 1.0)
    if count < 1:
        return 0.0, None
    if _fewer_below(count, p, count) < 1 - alpha / 2:
        return _lower_rank(count, p, alpha), None
    upper = _root(lambda rank: _fewer_below(count, p, rank) - (1 - alpha / 2), 1e-9, count)
    return _lower_rank(count, p, alpha), upper / count


def proportion_interval(share: float, count: float, alpha: float) -> tuple[float, float]:
    """Return the interval of Clopper and Pearson (Biometrika 26, 1934) for a share of `count` independent trials."""
    hits = share * count
    low = 0.0 if hits <= 0 else _root(lambda x: regularized_beta(hits, count - hits + 1, x) - alpha / 2, 0.0, 1.0)
    high = 1.0 if hits >= count else _root(lambda x: regularized_beta(hits + 1, count - hits, x) - 1 + alpha / 2, 0, 1)
    return low, high


def _lower_rank(count: float, p: float, alpha: float) -> float:
    if _fewer_below(count, p, 1e-9) >= alpha / 2:
        return 0.0
    return _root(lambda rank: _fewer_below(count, p, rank) - alpha / 2, 1e-9, count) / count


def _fewer_below(count: float, p: float, rank: float) -> float:
    """Return the probability that fewer than `rank` of `count` values are below the quantile `p`."""
    return regularized_beta(count - rank + 1, rank, 1 - p)


def _t_cdf(t: float, degrees: int) -> float:
    return 1.0 - regularized_beta(degrees / 2, 0.5, degrees / (degrees + t * t)) / 2


def _fraction(a: float, b: float, x: float) -> float:
    tiny = 1e-300
    c, d = 1.0, 1.0 / max(1.0 - (a + b) * x / (a + 1), tiny)
    value = d
    for m in range(1, _MAX_ITERATIONS):
        odd = a + 2 * m
        factor = m * (b - m) * x / ((odd - 1) * odd)
        d = 1.0 / (1.0 + factor * d or tiny)
        c = 1.0 + factor / c or tiny
        value *= c * d
        factor = -(a + m) * (a + b + m) * x / (odd * (odd + 1))
        d = 1.0 / (1.0 + factor * d or tiny)
        c = 1.0 + factor / c or tiny
        value *= c * d
        if -1e-12 < c * d - 1.0 < 1e-12:
            break
    return value


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Return where an ascending function is 0 (Chandrupatla, Advances in Engineering Software 28, 1997).

    A step bisects, or interpolates by an inverse parabola where the last three points allow it.
    """
    newest, newest_value = high, function(high)
    other, other_value = low, function(low)
    if newest_value < 0 or other_value >= 0:
        return high if newest_value < 0 else low
    share = 0.5
    while True:
        at = newest + share * (other - newest)
        value = function(at)
        if (value < 0) == (newest_value < 0):
            third, third_value = newest, newest_value
        else:
            third, third_value = other, other_value
            other, other_value = newest, newest_value
        newest, newest_value = at, value
        tolerance = 0.5e-9 * max(newest, other)
        width = abs(other - newest)
        if not value or width <= 2 * tolerance or width <= 1e-24:
            return newest if abs(newest_value) < abs(other_value) else other
        place = (newest - other) / (third - other)
        height = (newest_value - other_value) / (third_value - other_value)
        share = 0.5
        if height * height < place and (1 - height) ** 2 < 1 - place:
            share = newest_value / (other_value - newest_value) * third_value / (other_value - third_value)
            share += (
                (third - newest)
                / (other - newest)
                * newest_value
                / (third_value - newest_value)
                * other_value
                / (third_value - other_value)
            )
        share = min(max(share, tolerance / width), 1 - tolerance / width)
