"""When an open loop sends its requests: arrivals at rates that may change over time, also as words of command lines."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from conch.base.durations import parse_duration

MAX_ARRIVALS = 200_000_000
MAX_RATE = 10_000_000.0


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
        if all(segment.start_rate == segment.end_rate == 0 for segment in self.segments):
            raise ValueError("the rate must be greater than 0 at some time")

    def segments_until(self, duration_s: float) -> list[RateSegment]:
        """Return the segments of the first `duration_s` seconds, the last one cut."""
        segments, at, index = list[RateSegment](), 0.0, 0
        while at < duration_s:
            if index >= len(self.segments) and not self.repeats:
                end_rate = self.segments[-1].end_rate
                segments.append(RateSegment(duration_s - at, end_rate, end_rate))
                break
            segment = self.segments[index % len(self.segments)]
            left = duration_s - at
            if segment.duration_s > left:
                end_rate = segment.start_rate + (segment.end_rate - segment.start_rate) * left / segment.duration_s
                segment = RateSegment(left, segment.start_rate, end_rate)
            segments.append(segment)
            at, index = at + segment.duration_s, index + 1
        return segments

    def mean_rate(self, duration_s: float) -> float:
        """Return the mean requests per second over the first `duration_s` seconds."""
        return sum(_area(segment) for segment in self.segments_until(duration_s)) / duration_s


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
    areas = np.array([_area(segment) for segment in segments])
    begins_at = np.concatenate(([0.0], np.cumsum([segment.duration_s for segment in segments])))
    counted = np.concatenate(([0.0], np.cumsum(areas)))
    positions = positions[: int(np.searchsorted(positions, counted[-1], side="left"))]
    index = np.minimum(np.searchsorted(counted, positions, side="right") - 1, len(segments) - 1)
    starts = np.array([segment.start_rate for segment in segments])
    slopes = np.array([(segment.end_rate - segment.start_rate) / segment.duration_s for segment in segments])
    start, slope, rest = starts[index], slopes[index], positions - counted[index]
    # The stable solution of rest = start · t + slope · t² / 2; the root is not negative but for rounding.
    root = np.sqrt(np.maximum(start * start + 2.0 * slope * rest, 0.0))
    divisor = start + root
    within = np.divide(2.0 * rest, divisor, out=np.zeros_like(rest), where=divisor > 0)
    return np.asarray(begins_at[index] + within, dtype=np.float64)


def _area(segment: RateSegment) -> float:
    return segment.duration_s * (segment.start_rate + segment.end_rate) / 2.0


class ArrivalProcess(Enum):
    """How the times between requests vary around their mean."""

    CONSTANT = "constant"
    POISSON = "poisson"
    GAMMA = "gamma"


@dataclass(frozen=True, slots=True)
class Arrivals:
    """A process and its rate.

    `cv` is the coefficient of variation (standard deviation / mean) of the gaps of gamma arrivals: 0 is constant,
    1 is Poisson, more is burstier. The `--burstiness` of vLLM is the shape of the same distribution, 1 / cv².
    """

    curve: RateCurve
    process: ArrivalProcess = ArrivalProcess.POISSON
    cv: float = field(default=1.0)

    def __post_init__(self) -> None:
        if not 0 <= self.cv <= 100:
            raise ValueError(f"the coefficient of variation must be from 0 to 100, got {self.cv:g}")


def arrival_times(
    arrivals: Arrivals, duration_s: float, rng: np.random.Generator, *, max_arrivals: int = MAX_ARRIVALS
) -> NDArray[np.float64]:
    """Return the times of requests in seconds from the start, ascending, all less than `duration_s`.

    Constant arrivals begin at 0, the others with a random gap. The same generator state gives the same times. Raises
    ValueError if there would be more than `max_arrivals`.
    """
    if not duration_s > 0:
        raise ValueError(f"the duration must be greater than 0 s, got {duration_s:g}")
    segments = arrivals.curve.segments_until(duration_s)
    expected = arrivals.curve.mean_rate(duration_s) * duration_s
    if expected > max_arrivals:
        raise ValueError(f"{expected:,.0f} requests are more than {max_arrivals:,}; lower the rate or the duration")
    times = times_of(_positions(arrivals, expected, rng), segments)
    return times[times < duration_s]


def _positions(arrivals: Arrivals, end: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return the events of a process of rate 1, at least to `end`."""
    if arrivals.process is ArrivalProcess.CONSTANT or (arrivals.process is ArrivalProcess.GAMMA and arrivals.cv == 0):
        return np.arange(np.ceil(end), dtype=np.float64)
    cv = 1.0 if arrivals.process is ArrivalProcess.POISSON else arrivals.cv
    parts, reached = list[NDArray[np.float64]](), 0.0
    count = int(end + 6 * max(cv, 1.0) * np.sqrt(end)) + 16
    while reached < end:
        gaps = rng.standard_exponential(count) if cv == 1.0 else rng.gamma(1.0 / cv**2, cv**2, count)
        parts.append(reached + np.cumsum(gaps))
        reached, count = float(parts[-1][-1]), max(count // 4, 16)
    return np.concatenate(parts)


def parse_arrivals(text: str) -> tuple[ArrivalProcess, float]:
    """Return process and coefficient of variation of constant, poisson or gamma:CV. Raises ValueError."""
    name, colon, rest = text.strip().partition(":")
    if name == "gamma" and colon:
        try:
            cv = float(rest)
        except ValueError:
            cv = math.nan
        if 0 <= cv <= 100:
            return ArrivalProcess.GAMMA, cv
    elif not colon and name in ("constant", "poisson"):
        return ArrivalProcess(name), 0.0 if name == "constant" else 1.0
    raise ValueError(f"'{text}' is not a valid form of arrivals; expected constant, poisson or gamma:CV with CV ≤ 100")


def parse_rates(text: str) -> tuple[float, ...]:
    """Return the rates of a list such as 100,200 or a range START:END:STEP or START:END:xFACTOR. Raises ValueError."""
    form = "rates such as 100,200 or a range such as 100:400:50 or 100:1600:x2"
    if ":" not in text:
        return tuple(_rate(part, text, form) for part in text.split(","))
    parts = text.split(":")
    if len(parts) not in (2, 3):
        raise ValueError(f"'{text}' is not valid; expected {form}")
    start, end = _rate(parts[0], text, form), _rate(parts[1], text, form)
    step = parts[2].strip() if len(parts) == 3 else "1"
    multiplies = step.startswith("x")
    size = _rate(step.removeprefix("x"), text, form)
    if end < start or (multiplies and size <= 1) or (not multiplies and (end - start) / size > 10_000):
        raise ValueError(f"'{text}' is not valid: the range must ascend in at most 10000 steps; expected {form}")
    rates, value = list[float](), start
    while value <= end * (1 + 1e-9):
        rates.append(value)
        value = value * size if multiplies else start + size * len(rates)
    return tuple(rates)


def parse_ramp(text: str, duration_s: float | None = None) -> RateCurve:
    """Return the curve of START:END, over `duration_s` seconds, or of START:END:TIME. Raises ValueError."""
    form = "START:END:TIME in requests per second, such as 10:200:30s"
    parts = text.split(":")
    if len(parts) == 2 and duration_s is None:
        raise ValueError(f"'{text}' needs a time; expected {form}")
    if len(parts) not in (2, 3):
        raise ValueError(f"'{text}' is not a valid ramp; expected {form}")
    over_s = parse_duration(parts[2]) if len(parts) == 3 else duration_s
    start, end = _rate(parts[0], text, form, minimum=0), _rate(parts[1], text, form, minimum=0)
    return ramp(start, end, over_s or 0.0)


def parse_burst(text: str) -> RateCurve:
    """Return the curve of BASE:BURST:ON/PERIOD, such as 50:500:2s/10s. Raises ValueError."""
    form = "BASE:BURST:ON/PERIOD, such as 50:500:2s/10s: 500/s for 2 s of every 10 s, 50/s in between"
    parts = text.split(":")
    on, slash, period = parts[2].partition("/") if len(parts) == 3 else ("", "", "")
    if not slash:
        raise ValueError(f"'{text}' is not a valid burst; expected {form}")
    base, burst = _rate(parts[0], text, form, minimum=0), _rate(parts[1], text, form, minimum=0)
    return bursts(base, burst, parse_duration(on), parse_duration(period))


def _rate(text: str, whole: str, form: str, minimum: float = 1e-6) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not minimum <= value <= MAX_RATE:
        raise ValueError(f"'{whole}' is not valid: '{text.strip()}' is not a rate; expected {form}")
    return value
