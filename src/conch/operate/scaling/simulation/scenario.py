"""What is simulated: traffic, service, start of replicas, delays of the monitoring, faults, and the objective."""

from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from conch.domain.arrivals import RateCurve
from conch.operate.scaling.hpa.spec import HpaSettings
from conch.operate.scaling.simulation.queries import MetricDelays
from conch.operate.scaling.simulation.queue_model import ServiceModel

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
    for segment in curve.segments_until(duration_s):
        begins.append(at)
        starts.append(segment.start_rate)
        at += segment.duration_s
        ends.append(segment.end_rate)
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


class FaultKind(Enum):
    """What goes wrong. `duration_s` is of the first two, `count` of the others."""

    PROMETHEUS_DOWN = "prometheus-down"  # queries fail
    METRIC_MISSING = "metric-missing"  # queries succeed, without a series
    KILL = "kill"  # replicas die with the requests that they hold, and start again
    DRAIN = "drain"  # a node is drained: replicas end orderly and start elsewhere
    NEVER_READY = "never-ready"  # the next replicas that start never become ready


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault at a time."""

    kind: FaultKind
    at_s: int
    duration_s: int = 0
    count: int = 1


@dataclass(frozen=True, slots=True)
class ColdStart:
    """From a new pod to a ready one: `pull_s` as Pending, then loading and warm-up without metrics."""

    pull_s: int = 0
    load_s: int = 40
    warm_up_s: int = 0

    @property
    def total_s(self) -> int:
        """All of it."""
        return self.pull_s + self.load_s + self.warm_up_s


@dataclass(frozen=True, slots=True)
class Scenario:
    """One simulation, but for the policy. `slo_s` is the latency that `objective` of all requests must meet."""

    traffic: TrafficCurve
    service: ServiceModel
    cold_start: ColdStart = field(default_factory=ColdStart)
    slo_s: float = 0.2
    slo_is_first_token: bool = False
    objective: float = 0.99
    initial_replicas: int = 1
    max_queue: float = float("inf")  # waiting requests of a replica; more are rejected
    timing: MetricDelays = field(default_factory=MetricDelays)
    settings: HpaSettings = field(default_factory=HpaSettings)
    faults: tuple[Fault, ...] = ()
