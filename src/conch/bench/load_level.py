"""The levels of load of a run: numbers of users, rates, traces."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from conch.bench.arrivals.arrival_times import ArrivalProcess, Arrivals, arrival_times
from conch.bench.arrivals.rate_curve import RateCurve, steady
from conch.bench.load_plan import ClosedLoop, OpenLoop
from conch.bench.measurement import Level


@dataclass(frozen=True, slots=True)
class Users:
    """A closed loop."""

    concurrency: int
    think_s: float = 0.0

    @property
    def level(self) -> Level:
        """Return the level, for reports."""
        pause = f" think {self.think_s:g} s" if self.think_s else ""
        return Level("concurrency", self.concurrency, f"{self.concurrency}{pause}")

    def pacing(self, limit_s: float, seed: int) -> ClosedLoop:  # noqa: ARG002 - as the other forms
        """Return what the generator is to do for at most `limit_s`."""
        return ClosedLoop(self.concurrency, self.think_s)


@dataclass(frozen=True, slots=True)
class Rate:
    """An open loop with drawn times. `label` is for reports; `value` is the rate, or the highest of a curve."""

    arrivals: Arrivals
    value: float
    label: str

    @property
    def level(self) -> Level:
        """Return the level, for reports."""
        return Level("rate", self.value, self.label)

    def pacing(self, limit_s: float, seed: int) -> OpenLoop:
        """Return what the generator is to do for at most `limit_s`."""
        return OpenLoop(arrival_times(self.arrivals, limit_s, np.random.default_rng(seed)))


@dataclass(frozen=True, slots=True)
class Replay:
    """An open loop with recorded times, in seconds from the start. `requests` are indexes of the fixed requests."""

    times_s: NDArray[np.float64]
    requests: NDArray[np.int64] | None
    label: str

    @property
    def level(self) -> Level:
        """Return the level, for reports."""
        return Level("trace", len(self.times_s) / max(self.duration_s, 1e-9), self.label)

    @property
    def duration_s(self) -> float:
        """The time of the last request."""
        return float(self.times_s[-1]) if len(self.times_s) else 0.0

    def pacing(self, limit_s: float, seed: int) -> OpenLoop:  # noqa: ARG002 - as the other forms
        """Return what the generator is to do. The trace is replayed as a whole."""
        return OpenLoop(self.times_s, requests=self.requests)


LoadLevel = Users | Rate | Replay


def users(concurrencies: Sequence[int], think_s: float = 0.0) -> tuple[Users, ...]:
    """Return closed loops."""
    return tuple(Users(concurrency, think_s) for concurrency in concurrencies)


def rates(values: Sequence[float], process: ArrivalProcess, cv: float) -> tuple[Rate, ...]:
    """Return open loops of constant mean rates."""
    return tuple(Rate(Arrivals(steady(value), process, cv), value, _label(value, process, cv)) for value in values)


def curve(rate_curve: RateCurve, text: str, process: ArrivalProcess, cv: float) -> Rate:
    """Return an open loop whose rate changes."""
    highest = max(max(segment.start_rate, segment.end_rate) for segment in rate_curve.segments)
    return Rate(Arrivals(rate_curve, process, cv), highest, text)


def _label(value: float, process: ArrivalProcess, cv: float) -> str:
    form = f"gamma {cv:g}" if process is ArrivalProcess.GAMMA else process.value
    return f"{value:g}/s {form}"
