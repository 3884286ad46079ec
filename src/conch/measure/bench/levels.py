"""The levels of load of a run: users, rates, curves and traces, as flags ask for them, or a search for the highest."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from conch.base.errors import InvalidRequest
from conch.measure.bench.generator import ClosedLoop, OpenLoop
from conch.measure.bench.measurement import Level
from conch.measure.bench.plan import BenchPlan, MeasuringWindow

if TYPE_CHECKING:  # closed loops need no numpy
    import numpy as np
    from numpy.typing import NDArray

    from conch.domain.arrivals import ArrivalProcess, Arrivals, RateCurve
    from conch.domain.load_traces import LoadTrace

_AFTER_TRACE_S = 1.0  # of the window, after the last request of a trace
_DEFAULT_CONCURRENCIES = (1, 5, 30)
_MAX_LEVELS = 1000
_MAX_RATE = 1_000_000.0
_MIN_GAP = 0.05  # of a level, at the end of a search


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

        from conch.domain.arrivals import arrival_times

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


@dataclass(frozen=True, slots=True)
class SloSearch:
    """A search between `lowest` and `highest`. Levels are doubled until one fails, then the gap is halved.

    Integers for concurrencies; the search ends when the gap is less than 5 % of the level, or is 1.
    """

    lowest: float = 1.0
    highest: float = 4096.0
    integers: bool = True

    def next_level(self, tried: Mapping[float, bool]) -> float | None:
        """Return the level to measure next, given which of those tried met the SLOs; None at the end."""
        if not tried:
            return self.lowest
        failed = [level for level, met in tried.items() if not met]
        lowest_failed = min(failed, default=None)
        best = self.best(tried)
        if best is None:
            return None  # the lowest level fails already
        if lowest_failed is None:
            return None if best >= self.highest else self._rounded(min(best * 2, self.highest))
        gap = lowest_failed - best
        if gap <= max(_MIN_GAP * best, 1.0 if self.integers else 0.0):
            return None
        return self._rounded((best + lowest_failed) / 2)

    def best(self, tried: Mapping[float, bool]) -> float | None:
        """Return the highest level below all that failed, None if there is none."""
        lowest_failed = min((level for level, met in tried.items() if not met), default=float("inf"))
        return max((level for level, met in tried.items() if met and level < lowest_failed), default=None)

    def _rounded(self, level: float) -> float:
        return float(round(level)) if self.integers else level


@dataclass(frozen=True, slots=True)
class FindMax:
    """A search for the highest level that meets the SLOs; `level` makes a level from its value."""

    search: SloSearch
    level: Callable[[float], LoadLevel]


def trace_of(plan: BenchPlan, model: str | None) -> "LoadTrace | None":
    """Return the load of --trace, as fast and as long as asked. Raises ConchError."""
    if plan.trace is None:
        return None
    from conch.domain.load_traces import read_trace

    try:
        trace = read_trace(plan.trace, model).faster(plan.trace_speed)
        return trace if plan.duration_s is None else trace.window(0.0, plan.duration_s)
    except ValueError as error:
        raise InvalidRequest(f"--trace: {error}") from None


def levels_of(plan: BenchPlan, trace: "LoadTrace | None") -> tuple[LoadLevel, ...] | FindMax:
    """Return the levels, or the search for one. Raises InvalidRequest for flags that exclude each other."""
    given = [name for name in ("concurrency", "rate", "ramp", "burst", "trace") if getattr(plan, name) is not None]
    if len(given) > 1:
        raise InvalidRequest(f"--{given[0]} and --{given[1]} exclude each other: a run has one form of load")
    if plan.arrivals is not None and not {"rate", "ramp", "burst"} & set(given):
        raise InvalidRequest("--arrivals needs --rate, --ramp or --burst")
    _check_combinations(plan, given)
    try:
        return _find_max(plan) if plan.find_max else _chosen_levels(plan, trace)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None


def _check_combinations(plan: BenchPlan, given: Sequence[str]) -> None:
    """Raise InvalidRequest for flags that would have no effect."""
    if plan.rounds is not None and plan.against is None:
        raise InvalidRequest("--rounds needs --against; --repeat measures all levels of one server again")
    if plan.against is not None and plan.repeat > 1:
        raise InvalidRequest("--repeat does not apply to --against; use --rounds")
    if plan.find_max and (plan.against is not None or plan.repeat > 1):
        raise InvalidRequest("--find-max searches once, on one server: it excludes --against and --repeat")
    if plan.steps is not None and (plan.find_max or not {"concurrency", "rate"} & set(given)):
        raise InvalidRequest("--steps needs a range, --concurrency 1:64 or --rate 100:1600, and excludes --find-max")


def _spread(values: Sequence[float], steps: int) -> list[float]:
    """Return `steps` levels from the lowest to the highest value, each by the same factor above the one before."""
    low, high = min(values), max(values)
    return [low * (high / low) ** (step / max(steps - 1, 1)) for step in range(steps)]


def _bounded(levels: Sequence[float]) -> None:
    """Raise InvalidRequest for more levels than anyone waits for, most often a range without a step."""
    if len(levels) > _MAX_LEVELS:
        raise InvalidRequest(
            f"{len(levels):,} levels are more than {_MAX_LEVELS:,}: write a step, such as 1:4096:x2, or use --steps"
        )


def _chosen_levels(plan: BenchPlan, trace: "LoadTrace | None") -> tuple[LoadLevel, ...]:
    if trace is not None:
        speed = "" if plan.trace_speed == 1 else f" ×{plan.trace_speed:g}"
        return (Replay(trace.times_s, f"{trace.name}{speed}"),)
    if plan.rate is None and plan.ramp is None and plan.burst is None:
        concurrencies = plan.concurrency or _DEFAULT_CONCURRENCIES
        if plan.steps is not None:
            concurrencies = tuple(dict.fromkeys(round(value) for value in _spread(concurrencies, plan.steps)))
        _bounded(concurrencies)
        return tuple(Users(number, plan.think_s) for number in concurrencies)
    from conch.domain.arrivals import parse_arrivals, parse_burst, parse_ramp, parse_rates

    process, cv = parse_arrivals(plan.arrivals or "poisson")
    if plan.rate is not None:
        values = parse_rates(plan.rate)
        if plan.steps is not None:
            values = tuple(float(f"{value:.4g}") for value in _spread(values, plan.steps))
        _bounded(values)
        return rates(values, process, cv)
    if plan.ramp is not None:
        return (curve(parse_ramp(plan.ramp, plan.window().duration_s), f"ramp {plan.ramp}", process, cv),)
    assert plan.burst is not None
    return (curve(parse_burst(plan.burst), f"burst {plan.burst}", process, cv),)


def _find_max(plan: BenchPlan) -> FindMax:
    if not plan.slo:
        raise InvalidRequest("--find-max needs a target: --slo latency:50ms, or ttft:200ms,itl:30ms")
    if plan.ramp or plan.burst or plan.trace:
        raise InvalidRequest("--find-max searches over --concurrency or --rate, not over ramps, bursts or traces")
    from conch.domain.arrivals import parse_arrivals, parse_rates

    if plan.rate is None:
        bounds = plan.concurrency or (1, 4096)
        return FindMax(SloSearch(min(bounds), max(bounds)), lambda value: Users(int(value), plan.think_s))
    process, cv = parse_arrivals(plan.arrivals or "poisson")
    values = parse_rates(plan.rate)
    highest = max(values) if len(values) > 1 else _MAX_RATE
    return FindMax(SloSearch(min(values), highest, integers=False), lambda value: rates([value], process, cv)[0])


def rates(values: Sequence[float], process: "ArrivalProcess", cv: float) -> tuple[Rate, ...]:
    """Return open loops of constant mean rates."""
    from conch.domain.arrivals import Arrivals, steady

    return tuple(Rate(Arrivals(steady(value), process, cv), value, _label(value, process, cv)) for value in values)


def curve(rate_curve: "RateCurve", text: str, process: "ArrivalProcess", cv: float) -> Rate:
    """Return an open loop whose rate changes."""
    from conch.domain.arrivals import Arrivals

    highest = max(max(segment.start_rate, segment.end_rate) for segment in rate_curve.segments)
    return Rate(Arrivals(rate_curve, process, cv), highest, text, is_steady=False)


def _label(value: float, process: "ArrivalProcess", cv: float) -> str:
    form = f"gamma {cv:g}" if process.name == "GAMMA" else process.value
    return f"{value:g}/s {form}"
