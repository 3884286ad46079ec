"""What to tune, and how."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from conch.measure.tune.objective import Goal
from conch.measure.tune.search.strategies import DEFAULT_STRATEGY
from conch.measure.tune.space import Value

DEFAULT_CONCURRENCY = (1, 4, 16)
DEFAULT_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class TrialSettings:
    """How one configuration is measured. `batch_size` is the batch of each request."""

    protocol: str = "http"
    concurrency: tuple[int, ...] = DEFAULT_CONCURRENCY
    rates: tuple[float, ...] = ()  # requests per second in place of concurrency
    batch_size: int = 1
    window_s: float = 3.0
    warm_up_s: float = 1.0
    timeout_s: float = 60.0
    slo: Mapping[str, float] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    input_data: str | None = None
    images: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    grpc_url: str | None = None
    metrics_url: str | None = None
    gpu_metrics_url: str | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """How the space is searched. `share` of the grid is measured, at most; `max_trials` bounds the number."""

    strategy: str = DEFAULT_STRATEGY
    share: float = DEFAULT_SHARE
    min_trials: int = 8
    max_trials: int = 200
    time_budget_s: float | None = None
    finalists: int = 3
    rounds: int = 5  # interleaved measurements of each finalist
    seed: int = 0


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
