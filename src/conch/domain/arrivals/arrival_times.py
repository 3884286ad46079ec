"""Draws the times at which an open loop sends requests."""

from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from conch.domain.arrivals.rate_curve import RateCurve, times_of

MAX_ARRIVALS = 200_000_000


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
