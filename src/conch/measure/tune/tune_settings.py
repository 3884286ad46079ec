"""What to tune, and how: settings that flags of `conch tune` declare, and the run that they make together."""

from argparse import ArgumentTypeError
from collections.abc import Mapping
from dataclasses import dataclass, field

from conch.base.command_line.flag_values import one_of, value_kind
from conch.base.command_line.flags import flag_field, settings_field
from conch.base.command_line.option_types import concurrencies, duration, rate_list, slo
from conch.measure.bench.input_settings import InputSettings
from conch.measure.tune.objective import Goal
from conch.measure.tune.search import DEFAULT_STRATEGY, STRATEGIES
from conch.measure.tune.space import Value

DEFAULT_CONCURRENCY = (1, 4, 16)
_DEFAULT_SHARE = 0.2

# Groups of flags.
GOAL, LOAD, SEARCH, RESULT, ACCESS = "goal", "load", "search", "result", "access"

_NUMBER, TIME, URL = value_kind("N", int), value_kind("TIME", duration), value_kind("URL")


def _share(text: str) -> float:
    try:
        share = float(text.removesuffix("%")) / 100
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise ArgumentTypeError(f"'{text}' must be above 0 and at most 100 %")
    return share


def _concurrencies(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(concurrencies(text)))


def _rates(text: str) -> tuple[float, ...]:
    from conch.domain.arrivals import parse_rates  # imports numpy

    try:
        return tuple(dict.fromkeys(parse_rates(rate_list(text))))
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


@dataclass(frozen=True, slots=True)
class TrialSettings:
    """How one configuration is measured."""

    # fmt: off
    slo: Mapping[str, float] = flag_field(
        {}, GOAL, "such as ttft:200ms,itl:30ms,latency:1s", value_kind("LIST", slo))
    protocol: str = flag_field("http", LOAD, "", one_of("http", "grpc", "grpc-stream", "openai", "generate"))
    concurrency: tuple[int, ...] = flag_field(
        DEFAULT_CONCURRENCY, LOAD,
        f"concurrent users, tried each (default: {','.join(map(str, DEFAULT_CONCURRENCY))})",
        value_kind("LIST", _concurrencies))
    rates: tuple[float, ...] = flag_field(
        (), LOAD, "requests per second in place of users", value_kind("LIST", _rates), name="rate")
    inputs: InputSettings = settings_field(InputSettings)
    window_s: float = flag_field(3.0, LOAD, "of a measurement (default: 3s)", TIME, name="window")
    warm_up_s: float = flag_field(1.0, LOAD, "before a measurement (default: 1s)", TIME, name="warm-up")
    grpc_url: str | None = flag_field(None, ACCESS, "default: the port after that of --url", URL)
    metrics_url: str | None = flag_field(None, ACCESS, "metrics of the server, for memory", URL)
    gpu_metrics_url: str | None = flag_field(None, ACCESS, "of conch gpu-exporter or dcgm-exporter", URL)
    # fmt: on
    timeout_s: float = 60.0


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """How the space is searched. `share` of the grid is measured, at most; `max_trials` bounds the number."""

    # fmt: off
    strategy: str = flag_field(
        DEFAULT_STRATEGY, SEARCH, f"strategy (default: {DEFAULT_STRATEGY})", one_of(*STRATEGIES), name="search")
    share: float | None = flag_field(
        None, SEARCH, f"of the grid, at most (default: {_DEFAULT_SHARE * 100:.0f})", value_kind("PERCENT", _share))
    time_budget_s: float | None = flag_field(
        None, SEARCH, "of the whole run, such as 10m", TIME, name="time-budget")
    finalists: int = flag_field(3, SEARCH, "measured beside the current one (default: 3)", _NUMBER)
    rounds: int = flag_field(5, SEARCH, "of interleaved measurements (default: 5)", _NUMBER)
    seed: int = flag_field(0, SEARCH, "", _NUMBER)
    # fmt: on
    min_trials: int = 8
    max_trials: int = 200

    def trials(self, size: int) -> int:
        """Return how many of `size` configurations are measured, at most."""
        return min(size, max(self.min_trials, min(self.max_trials, int(size * (self.share or _DEFAULT_SHARE)))))


@dataclass(frozen=True, slots=True)
class TuneSettings:
    """One run. `knobs`: model → knob → values, None for those tried by default; model "" is the tuned one.

    Without knobs for a model, those tuned by default are.
    """

    model: str
    goal: Goal = field(default_factory=Goal)
    knobs: Mapping[str, Mapping[str, tuple[Value, ...] | None]] = field(default_factory=dict)
    max_instances: int | None = None
    composing: tuple[str, ...] | None = None  # None: found by the server's configuration and statistics
    trial: TrialSettings = field(default_factory=TrialSettings)
    search: SearchSettings = field(default_factory=SearchSettings)
