"""Traffic: requests per second in each second of a time, synthetic or recorded."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from conch.domain.arrivals import RateCurve

DAY_S = 86400
_NOISE_CORRELATION_S = 60.0


@dataclass(frozen=True, slots=True)
class TrafficCurve:
    """Requests per second, one value per second; `name` is how it is shown."""

    name: str
    rates: NDArray[np.float64]

    @property
    def duration_s(self) -> int:
        """The number of seconds."""
        return len(self.rates)

    @property
    def requests(self) -> float:
        """All requests."""
        return float(self.rates.sum())

    def with_noise(self, share: float, seed: int) -> "TrafficCurve":
        """Return traffic that wanders around this one: lognormal with this deviation, correlated over a minute."""
        if share <= 0:
            return self
        random = np.random.default_rng(seed)
        # A value for each quarter of the correlation time, with straight lines in between.
        step = _NOISE_CORRELATION_S / 4
        count = int(self.duration_s / step) + 2
        shocks = random.standard_normal(count)
        keep = float(np.exp(-0.25))
        wander = np.empty(count)
        wander[0] = shocks[0]
        for index in range(1, count):
            wander[index] = keep * wander[index - 1] + np.sqrt(1 - keep * keep) * shocks[index]
        factor = np.exp(share * np.interp(np.arange(self.duration_s), np.arange(count) * step, wander) - share**2 / 2)
        return TrafficCurve(self.name, self.rates * factor)


def diurnal(low: float, high: float, peak_h: float = 20.0, duration_s: int = DAY_S) -> TrafficCurve:
    """Return a day between two rates: a cosine with its peak at an hour."""
    hours = np.arange(duration_s) / 3600
    wave = (1 + np.cos((hours - peak_h) * 2 * np.pi / 24)) / 2
    return TrafficCurve(f"diurnal from {low:,.10g} to {high:,.10g} requests/s", low + (high - low) * wave)


def from_curve(curve: RateCurve, duration_s: int, name: str) -> TrafficCurve:
    """Return the rates of a curve."""
    ends, starts = list[float](), list[float]()
    begins, at = list[float](), 0.0
    for each in curve.segments_until(duration_s):
        begins.append(at)
        starts.append(each.start_rate)
        at += each.duration_s
        ends.append(each.end_rate)
    seconds = np.arange(duration_s) + 0.5
    index = np.searchsorted(begins, seconds, side="right") - 1
    first, last = np.array(starts)[index], np.array(ends)[index]
    lengths = np.diff([*begins, at])
    within = (seconds - np.array(begins)[index]) / lengths[index]
    return TrafficCurve(name, first + (last - first) * within)


def from_times(times_s: NDArray[np.float64], name: str, factor: float = 1.0) -> TrafficCurve:
    """Return the requests of each second of a recording, times a factor. Raises ValueError for an empty one."""
    if not len(times_s):
        raise ValueError(f"{name} has no requests")
    counts = np.bincount(np.asarray(times_s, dtype=np.int64)).astype(np.float64)
    return TrafficCurve(name, counts * factor)


def from_counts(counts: NDArray[np.float64], interval_s: int, name: str, factor: float = 1.0) -> TrafficCurve:
    """Return the rates of counts per interval, even within each. Raises ValueError for an empty recording."""
    if not len(counts) or interval_s < 1:
        raise ValueError(f"{name} has no counts, or its interval is shorter than 1 s")
    return TrafficCurve(name, np.repeat(np.asarray(counts, dtype=np.float64) / interval_s, interval_s) * factor)
