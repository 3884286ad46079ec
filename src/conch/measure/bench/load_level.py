"""The levels of load of a run: numbers of users, rates, traces."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from conch.measure.bench.load_plan import ClosedLoop, OpenLoop
from conch.measure.bench.measurement import Level
from conch.measure.bench.measuring_window import MeasuringWindow

if TYPE_CHECKING:  # closed loops need no numpy
    import numpy as np
    from numpy.typing import NDArray

    from conch.domain.arrivals.arrival_times import ArrivalProcess, Arrivals
    from conch.domain.arrivals.rate_curve import RateCurve

_AFTER_TRACE_S = 1.0  # of the window, after the last request of a trace


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

    arrivals: "Arrivals"
    value: float
    label: str
    is_steady: bool = True

    @property
    def level(self) -> Level:
        """Return the level, for reports."""
        return Level("rate" if self.is_steady else "curve", self.value, self.label)

    def pacing(self, limit_s: float, seed: int) -> OpenLoop:
        """Return what the generator is to do for at most `limit_s`."""
        import numpy as np

        from conch.domain.arrivals.arrival_times import arrival_times

        return OpenLoop(arrival_times(self.arrivals, limit_s, np.random.default_rng(seed)))


@dataclass(frozen=True, slots=True)
class Replay:
    """An open loop with recorded times, in seconds from the start. Request n of the source goes with time n."""

    times_s: "NDArray[np.float64]"
    label: str

    @property
    def level(self) -> Level:
        """Return the level, for reports."""
        return Level("trace", len(self.times_s) / max(self.duration_s, 1e-9), self.label)

    @property
    def duration_s(self) -> float:
        """The time of the last request."""
        return float(self.times_s[-1]) if len(self.times_s) else 0.0

    def pacing(self, requests: int) -> OpenLoop:
        """Return what the generator is to do with a number of fixed requests, 0 for scripts."""
        import numpy as np

        order = np.arange(len(self.times_s)) % requests if requests else None
        return OpenLoop(self.times_s, requests=order)


LoadLevel = Users | Rate | Replay


def window_for(level: LoadLevel, window: MeasuringWindow) -> MeasuringWindow:
    """Return the window of a level: loads that change by design have no automatic warm-up, traces run as a whole."""
    if isinstance(level, Users) or (isinstance(level, Rate) and level.is_steady):
        return window
    fixed = replace(window, is_load_steady=False, warm_up_s=window.warm_up_s or 0.0)
    if not isinstance(level, Replay):
        return fixed
    duration = level.duration_s + _AFTER_TRACE_S - (fixed.warm_up_s or 0.0)
    return replace(fixed, duration_s=max(duration, _AFTER_TRACE_S), requests=None, precision=None)


def users(concurrencies: Sequence[int], think_s: float = 0.0) -> tuple[Users, ...]:
    """Return closed loops."""
    return tuple(Users(concurrency, think_s) for concurrency in concurrencies)


def rates(values: Sequence[float], process: "ArrivalProcess", cv: float) -> tuple[Rate, ...]:
    """Return open loops of constant mean rates."""
    from conch.domain.arrivals.arrival_times import Arrivals
    from conch.domain.arrivals.rate_curve import steady

    return tuple(Rate(Arrivals(steady(value), process, cv), value, _label(value, process, cv)) for value in values)


def curve(rate_curve: "RateCurve", text: str, process: "ArrivalProcess", cv: float) -> Rate:
    """Return an open loop whose rate changes."""
    from conch.domain.arrivals.arrival_times import Arrivals

    highest = max(max(segment.start_rate, segment.end_rate) for segment in rate_curve.segments)
    return Rate(Arrivals(rate_curve, process, cv), highest, text, is_steady=False)


def _label(value: float, process: "ArrivalProcess", cv: float) -> str:
    form = f"gamma {cv:g}" if process.name == "GAMMA" else process.value
    return f"{value:g}/s {form}"
