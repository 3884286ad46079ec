"""What each knob does by itself, and the best compromises of throughput and latency. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp, log
from statistics import median

import numpy as np

from conch.measure.tune.outcome import KnobEffect
from conch.measure.tune.space import Dimension, Space, Value
from conch.measure.tune.state.trial_log import Trial

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
    return tuple(
        KnobEffect(
            each.name, value, int(counts[i]), {metric: exp(float(found[i + 1])) for metric, found in fitted.items()}
        )
        for i, (each, value) in enumerate(columns)
        if counts[i]
    )


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
    for trial in sorted(known, key=lambda each: (-each.figures[rising], each.figures[falling])):
        if not front or trial.figures[falling] < front[-1].figures[falling]:
            front.append(trial)
    return front[::-1]


def _reference(dimension: Dimension, current: Mapping[str, Value]) -> Value:
    value = current.get(dimension.name)
    return value if value in dimension.values else dimension.values[0]
