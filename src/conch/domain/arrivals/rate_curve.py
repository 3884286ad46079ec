"""The rate of requests as a function of time: piecewise linear, with jumps."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class RateSegment:
    """A time in which the rate changes linearly from `start_rate` to `end_rate`, in requests per second."""

    duration_s: float
    start_rate: float
    end_rate: float

    def __post_init__(self) -> None:
        if not (self.duration_s > 0 and self.start_rate >= 0 and self.end_rate >= 0):
            raise ValueError(f"a rate must not be negative and must last longer than 0 s, got {self}")


@dataclass(frozen=True, slots=True)
class RateCurve:
    """Segments in succession. After the last one, they repeat, or the last rate continues."""

    segments: tuple[RateSegment, ...]
    repeats: bool = False

    def __post_init__(self) -> None:
        if not self.segments:
            raise ValueError("a curve of rates needs at least one segment")
        if all(each.start_rate == each.end_rate == 0 for each in self.segments):
            raise ValueError("the rate must be greater than 0 at some time")

    def segments_until(self, duration_s: float) -> list[RateSegment]:
        """Return the segments of the first `duration_s` seconds, the last one cut."""
        found, at, index = list[RateSegment](), 0.0, 0
        while at < duration_s:
            if index >= len(self.segments) and not self.repeats:
                end_rate = self.segments[-1].end_rate
                found.append(RateSegment(duration_s - at, end_rate, end_rate))
                break
            each = self.segments[index % len(self.segments)]
            left = duration_s - at
            if each.duration_s > left:
                end_rate = each.start_rate + (each.end_rate - each.start_rate) * left / each.duration_s
                each = RateSegment(left, each.start_rate, end_rate)
            found.append(each)
            at, index = at + each.duration_s, index + 1
        return found

    def mean_rate(self, duration_s: float) -> float:
        """Return the mean requests per second over the first `duration_s` seconds."""
        return sum(_area(each) for each in self.segments_until(duration_s)) / duration_s


def steady(rate: float) -> RateCurve:
    """Return a curve of one rate."""
    return steps([(rate, 1.0)])


def ramp(start_rate: float, end_rate: float, over_s: float) -> RateCurve:
    """Return a linear change over `over_s` seconds, after which the rate stays."""
    return RateCurve((RateSegment(over_s, start_rate, end_rate),))


def bursts(base_rate: float, burst_rate: float, on_s: float, period_s: float) -> RateCurve:
    """Return square bursts: each period ends with `on_s` seconds of `burst_rate`, before which `base_rate` holds."""
    if not 0 < on_s < period_s:
        raise ValueError(f"a burst must be shorter than its period, got {on_s:g} s of {period_s:g} s")
    off = RateSegment(period_s - on_s, base_rate, base_rate)
    return RateCurve((off, RateSegment(on_s, burst_rate, burst_rate)), repeats=True)


def steps(rates: Sequence[tuple[float, float]]) -> RateCurve:
    """Return (rate, seconds) in succession; the last rate stays."""
    return RateCurve(tuple(RateSegment(duration_s, rate, rate) for rate, duration_s in rates))


def times_of(positions: NDArray[np.float64], segments: Sequence[RateSegment]) -> NDArray[np.float64]:
    """Return when the expected number of requests reaches each of the ascending `positions`.

    This inverts the integral of the rate, by which a process of rate 1 becomes one of the rate of the segments
    (Çinlar, Introduction to Stochastic Processes, 1975, section 4.7). Positions beyond the end are left out.
    """
    areas = np.array([_area(each) for each in segments])
    begins_at = np.concatenate(([0.0], np.cumsum([each.duration_s for each in segments])))
    counted = np.concatenate(([0.0], np.cumsum(areas)))
    positions = positions[: int(np.searchsorted(positions, counted[-1], side="left"))]
    index = np.minimum(np.searchsorted(counted, positions, side="right") - 1, len(segments) - 1)
    starts = np.array([each.start_rate for each in segments])
    slopes = np.array([(each.end_rate - each.start_rate) / each.duration_s for each in segments])
    start, slope, rest = starts[index], slopes[index], positions - counted[index]
    # The stable solution of rest = start · t + slope · t² / 2; the root is not negative but for rounding.
    root = np.sqrt(np.maximum(start * start + 2.0 * slope * rest, 0.0))
    divisor = start + root
    within = np.divide(2.0 * rest, divisor, out=np.zeros_like(rest), where=divisor > 0)
    return np.asarray(begins_at[index] + within, dtype=np.float64)


def _area(segment: RateSegment) -> float:
    return segment.duration_s * (segment.start_rate + segment.end_rate) / 2.0
