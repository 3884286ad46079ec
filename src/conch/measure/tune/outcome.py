"""What a run found: gains of finalists, effects of knobs, stages. The JSON report is these classes, field by field."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import exp, log, sqrt
from statistics import fmean, median, stdev
from typing import Any

import numpy as np

from conch.measure.bench.statistics.quantile_functions import t_quantile
from conch.measure.tune.objective import Goal
from conch.measure.tune.space import Dimension, Space, Value
from conch.measure.tune.state.folder import Trial


@dataclass(frozen=True, slots=True)
class Contestant:
    """A configuration and its figures, one mapping for each round; None where a round failed."""

    name: str
    rounds: tuple[Mapping[str, float] | None, ...]

    def typical(self) -> dict[str, float]:
        """Return the median of each figure."""
        known = [figures for figures in self.rounds if figures]
        names = set.intersection(*(set(figures) for figures in known)) if known else set()
        return {name: median(figures[name] for figures in known) for name in sorted(names)}


@dataclass(frozen=True, slots=True)
class Gain:
    """A contestant against the current configuration, as ratios of the objective: 1.07 is 7 % better.

    `low` and `high` bound it with a confidence of 95 %; without two common rounds they are None.
    """

    name: str
    ratio: float
    low: float | None
    high: float | None
    feasible: bool

    @property
    def is_shown(self) -> bool:
        """Whether the interval is above 1."""
        return self.low is not None and self.low > 1


def compare(current: Contestant, others: Sequence[Contestant], goal: Goal) -> list[Gain]:
    """Return the gains of the others, the best first: those within the constraints before those outside."""
    gains = [_gain(current, other, goal) for other in others]
    return sorted(gains, key=lambda gain: (gain.feasible, gain.ratio), reverse=True)


def winner(gains: Sequence[Gain], *, current_feasible: bool) -> Gain | None:
    """Return the best gain if it is shown; if the current configuration breaks the constraints, the best within."""
    best = next((gain for gain in gains if gain.feasible), None)
    if best is None:
        return None
    return best if best.is_shown or not current_feasible else None


def _gain(current: Contestant, other: Contestant, goal: Goal) -> Gain:
    unbound = Goal(goal.objectives)
    differences = []
    for mine, theirs in zip(other.rounds, current.rounds, strict=False):
        if mine and theirs and (a := unbound.score(mine)) is not None and (b := unbound.score(theirs)) is not None:
            differences.append(a - b)
    typical = other.typical()
    feasible = bool(typical) and goal.is_feasible(typical)
    if not differences:
        return Gain(other.name, 0.0, None, None, feasible and not current.typical())
    mean = fmean(differences)
    if len(differences) == 1:
        return Gain(other.name, exp(mean), None, None, feasible)
    margin = t_quantile(0.975, len(differences) - 1) * stdev(differences) / sqrt(len(differences))
    return Gain(other.name, exp(mean), exp(mean - margin), exp(mean + margin), feasible)


_MIN_SHARE = 0.5  # of the requests of the whole that a model must have had to be a stage of it


@dataclass(frozen=True, slots=True)
class StageLoad:
    """A stage over a window: seconds per request of it, and how many instances its computing kept busy."""

    model: str
    requests: int
    queue_s: float
    compute_s: float
    busy_instances: float
    instances: int

    @property
    def utilization(self) -> float:
        """Share of the instances' time in which they computed."""
        return self.busy_instances / max(1, self.instances)


def stage_loads(
    before: Mapping[str, Mapping[str, Any]],
    after: Mapping[str, Mapping[str, Any]],
    instances: Mapping[str, int],
    window_s: float,
) -> list[StageLoad]:
    """Return the loads of the models in `instances` from two answers of the statistics endpoint."""
    loads = []
    for model, count in instances.items():
        first, last = before.get(model, {}), after.get(model, {})
        requests = _delta(first, last, "success", "count")
        if not requests:
            continue
        queue_ns = _delta(first, last, "queue", "ns")
        # A batch computes once for all of its requests, each of which is charged with the whole time.
        compute_ns = sum(_delta(first, last, f"compute_{part}", "ns") for part in ("input", "infer", "output"))
        executions = last.get("execution_count", 0) - first.get("execution_count", 0)
        inferences = last.get("inference_count", 0) - first.get("inference_count", 0)
        batch = inferences / executions if executions else 1.0
        busy = compute_ns / 1e9 / max(window_s, 1e-9) / max(batch, 1.0)
        loads.append(StageLoad(model, requests, queue_ns / requests / 1e9, compute_ns / requests / 1e9, busy, count))
    return loads


def bottleneck(loads: Iterable[StageLoad]) -> StageLoad | None:
    """Return the stage to widen: that with the longest queue; without queues, that which computes longest."""
    stages = list(loads)
    if not stages:
        return None
    if max(stage.queue_s for stage in stages) > max(stage.compute_s for stage in stages) / 10:
        return max(stages, key=lambda stage: stage.queue_s)
    return max(stages, key=lambda stage: stage.compute_s)


def called_models(
    model: str, before: Mapping[str, Mapping[str, Any]], after: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Return the models that had requests while this one had: those that a BLS model calls, if no other client does."""
    own = _delta(before.get(model, {}), after.get(model, {}), "success", "count")
    return [
        name
        for name, last in after.items()
        if name != model and own and _delta(before.get(name, {}), last, "success", "count") >= own * _MIN_SHARE
    ]


def _delta(before: Mapping[str, Any], after: Mapping[str, Any], part: str, field: str) -> int:
    def value(stats: Mapping[str, Any]) -> int:
        return int(stats.get("inference_stats", {}).get(part, {}).get(field, 0))

    # A reload begins with 0.
    return value(after) - value(before) if value(after) >= value(before) else value(after)


FORMAT = 1


@dataclass(frozen=True, slots=True)
class Finalist:
    """A configuration of the last rounds, with the median of its figures."""

    name: str
    settings: Mapping[str, Value]
    figures: Mapping[str, float]
    feasible: bool


@dataclass(frozen=True, slots=True)
class KnobEffect:
    """A value of a knob against the current one, other knobs equal: ratios of figures, 1.2 is 20 % more."""

    knob: str
    value: Value
    trials: int
    ratios: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class TuneOutcome:
    """One run. `winner` is the name of a finalist; None: nothing is shown to be better than "current"."""

    model: str
    server: str
    url: str
    goal: str
    started_at: str
    duration_s: float
    space: Mapping[str, tuple[Value, ...]]
    space_size: int
    strategy: str
    trials: tuple[Trial, ...]
    reused: int
    finalists: tuple[Finalist, ...]
    gains: tuple[Gain, ...]
    winner: str | None
    effects: tuple[KnobEffect, ...]
    stages: tuple[StageLoad, ...] = ()
    bottleneck: str | None = None
    current: Mapping[str, Value] = field(default_factory=dict)
    """The values of the current configuration; empty before the search began."""
    diffs: Mapping[str, str] = field(default_factory=dict)
    """Model → difference of its config.pbtxt."""
    ended: str = ""
    """Why the search ended early, if it did: time budget, interrupted, server gone."""
    notes: tuple[str, ...] = ()

    def finalist(self, name: str) -> Finalist | None:
        """Return a finalist by name."""
        return next((finalist for finalist in self.finalists if finalist.name == name), None)


def to_json(outcome: TuneOutcome) -> str:
    """Return the report as JSON text. Times are seconds."""
    return json.dumps({"format": FORMAT, **asdict(outcome)}, indent=2) + "\n"


_RIDGE = 0.05


def knob_effects(
    space: Space, trials: Sequence[Trial], current: Mapping[str, Value], metrics: Sequence[str]
) -> tuple[KnobEffect, ...]:
    """Return the effects of the values that were tried, from an additive model of the figures' logarithms.

    The model separates knobs that were changed together. A value without trials has no effect reported.
    """
    used = [
        trial
        for trial in trials
        if trial.figures and all(dimension.name in trial.settings for dimension in space.dimensions)
    ]
    columns = [
        (dimension, value)
        for dimension in space.dimensions
        for value in dimension.values
        if value != _reference(dimension, current)
    ]
    if not used or not columns:
        return ()
    design = np.array([[1.0, *(float(t.settings[d.name] == value) for d, value in columns)] for t in used])
    weights = np.sqrt([trial.effort for trial in used])
    fitted: dict[str, np.ndarray] = {}
    for metric in metrics:
        rows = [i for i, trial in enumerate(used) if trial.figures.get(metric, 0) > 0]
        if len(rows) < 2:
            continue
        a = design[rows] * weights[rows, None]
        y = np.array([log(used[i].figures[metric]) for i in rows]) * weights[rows]
        penalty = np.diag([1e-9, *([_RIDGE] * len(columns))])
        fitted[metric] = np.linalg.solve(a.T @ a + penalty, a.T @ y)
    counts = design[:, 1:].sum(axis=0)
    effects = []
    for index, (dimension, value) in enumerate(columns):
        if counts[index]:
            ratios = {metric: exp(float(factors[index + 1])) for metric, factors in fitted.items()}
            effects.append(KnobEffect(dimension.name, value, int(counts[index]), ratios))
    return tuple(effects)


def measured_configurations(trials: Sequence[Trial], current: Mapping[str, Value]) -> list[Trial]:
    """Return one trial for each configuration and load that was measured in full: the median of its measurements.

    Settings that a trial leaves out are those of the current configuration.
    """
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        if trial.effort >= 1 and {"throughput", "p99"} <= trial.figures.keys():
            settings = {name: value for name, value in {**current, **trial.settings}.items() if name != "round"}
            groups.setdefault(repr(sorted(settings.items())), []).append(replace(trial, settings=settings))
    return [replace(taken[0], figures=_medians(taken)) for taken in groups.values()]


def best_compromises(trials: Sequence[Trial], current: Mapping[str, Value]) -> list[Trial]:
    """Return the configurations that no other one beats in both throughput and P99, by ascending throughput."""
    return pareto_front(measured_configurations(trials, current), "throughput", "p99")


def _medians(trials: Sequence[Trial]) -> dict[str, float]:
    names = set.intersection(*(set(trial.figures) for trial in trials))
    return {name: median(trial.figures[name] for trial in trials) for name in sorted(names)}


def pareto_front(trials: Sequence[Trial], rising: str, falling: str) -> list[Trial]:
    """Return the trials that no other one beats in both figures, by ascending `rising`."""
    known = [trial for trial in trials if rising in trial.figures and falling in trial.figures]
    front: list[Trial] = []
    for trial in sorted(known, key=lambda other: (-other.figures[rising], other.figures[falling])):
        if not front or trial.figures[falling] < front[-1].figures[falling]:
            front.append(trial)
    return front[::-1]


def _reference(dimension: Dimension, current: Mapping[str, Value]) -> Value:
    value = current.get(dimension.name)
    return value if value in dimension.values else dimension.values[0]
