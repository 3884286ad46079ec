"""What a run searches and measures: the dimensions, and what fits into a time budget. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

from conch.measure.tune.deployment import SEPARATOR
from conch.measure.tune.knobs import KNOBS, LOAD, Document, KnobError, current_settings, dimension, is_ensemble
from conch.measure.tune.space import Dimension, Space, Value
from conch.measure.tune.tune_settings import TrialSettings, TuneSettings

MEASUREMENT_START_S = 0.3  # processes, connections, their end
FINALS_SHARE = 0.4  # of the budget, for finalists
_MIN_ROUNDS = 2  # without which a gain has no interval
_USEFUL_TRIALS = 8  # of the search; for fewer, windows are shortened
_MIN_WINDOW_S, _MIN_WARM_UP_S = 0.5, 0.2
_RESERVE = 0.1  # of the budget: loading configurations, and restoring the last one


class BudgetTooShort(ValueError):
    """No comparison fits into the budget; the message says what would."""


@dataclass(frozen=True, slots=True)
class BudgetPlan:
    """The settings that fit, and the sentence for the start of the run."""

    settings: TuneSettings
    text: str


def fit_to_budget(settings: TuneSettings) -> BudgetPlan:
    """Return settings whose measurements fit into the time budget; only default windows are shortened.

    Raises BudgetTooShort if not even one configuration can be compared with the current one.
    """
    budget = settings.search.time_budget_s
    if budget is None:
        return BudgetPlan(settings, "")
    levels = len(settings.trial.rates or settings.trial.concurrency)
    finals = (settings.search.finalists + 1) * _MIN_ROUNDS
    trial = _shortened(settings.trial, budget * (1 - _RESERVE) / (levels + _USEFUL_TRIALS + finals))
    measurement = measurement_s(trial)
    least = levels + 1 + 2  # the current configuration, another one, and a round of both
    fitting = int(budget * (1 - _RESERVE) / measurement + 1e-9)
    if fitting < least:
        loads = f"{levels} load{'s' if levels > 1 else ''}"
        raise BudgetTooShort(
            f"--time-budget {_text(budget)} is too short: the least is {least} measurements of {_text(measurement)} "
            f"({loads} on the current configuration, another configuration, one round of both); give at least "
            f"{ceil(least * measurement / (1 - _RESERVE))}s, fewer loads (--concurrency) or a shorter --window"
        )
    final = max(int(fitting * FINALS_SHARE), 2)
    final = min(final, (settings.search.finalists + 1) * settings.search.rounds)
    searched = min(fitting - levels - final, settings.search.max_trials)
    window = _text(trial.window_s) + (" (shortened)" if trial.window_s < settings.trial.window_s else "")
    text = (
        f"time budget {_text(budget)}: about {levels + searched + final} measurements with windows of {window}: "
        f"{levels} of the current configuration, up to {searched} of others, {final} of finalists"
    )
    trials = min(levels + searched, settings.search.max_trials)
    search = replace(settings.search, max_trials=trials, min_trials=min(trials, settings.search.min_trials))
    return BudgetPlan(replace(settings, trial=trial, search=search), text)


def measurement_s(trial: TrialSettings, effort: float = 1.0) -> float:
    """Return how long a measurement takes, without the loading of its configuration."""
    return MEASUREMENT_START_S + trial.warm_up_s + trial.window_s * effort


def _shortened(trial: TrialSettings, target_s: float) -> TrialSettings:
    """Return settings whose measurement takes the target time, if window and warm-up are the default ones."""
    default = TrialSettings()
    if (trial.window_s, trial.warm_up_s) != (default.window_s, default.warm_up_s):
        return trial
    scale = (target_s - MEASUREMENT_START_S) / (default.window_s + default.warm_up_s)
    if scale >= 1:
        return trial
    window, warm_up = max(default.window_s * scale, _MIN_WINDOW_S), max(default.warm_up_s * scale, _MIN_WARM_UP_S)
    return replace(trial, window_s=round(window, 2), warm_up_s=round(warm_up, 2))


def _text(seconds: float) -> str:
    return f"{seconds:.3g}s"


_INSTANCES = "instances"
_BATCH = "max_batch_size"


def plan_space(
    settings: TuneSettings,
    documents: Mapping[str, Document],
    cores: int,
    narrow: str | None = None,
    engines: Sequence[str] = (),
) -> Space:
    """Return the space: the load, and the knobs of each model in `documents`.

    `narrow` is the bottleneck of a model with stages: by default it gets all knobs, other stages only their number of
    instances. `engines` are models whose model.json can be written. Raises KnobError for values or knobs that no model
    has.
    """
    limit = settings.max_instances or 2 * cores
    levels: tuple[Value, ...] = settings.trial.rates or settings.trial.concurrency
    # A stage must take the batches of its ensemble.
    least_batch = int(documents[settings.model].get(_BATCH, 0)) if is_ensemble(documents[settings.model]) else 0
    dimensions = [Dimension(LOAD, levels, reloads=False)]
    for name, document in documents.items():
        own = name == settings.model
        chosen = settings.knobs.get("" if own else name)
        knobs = dict(chosen) if chosen is not None else _default_knobs(settings, name, own=own, narrow=narrow)
        for knob, values in knobs.items():
            _check(knob, values, name, document, engines)
            axis = dimension(knob, document, cores, values)
            if axis is None:
                if chosen is not None and not is_ensemble(document):
                    owners = " and ".join(KNOBS[knob].backends or ("other models",))
                    raise KnobError(f"model '{name}' has no knob '{knob}'; it is a knob of {owners}")
                continue
            if knob == _INSTANCES and values is None:
                current = KNOBS[knob].read(document)
                axis = Dimension(knob, tuple(v for v in axis.values if v == current or int(str(v)) <= limit))
            if knob == _BATCH and values is None and not own:
                axis = Dimension(knob, tuple(v for v in axis.values if int(str(v)) >= least_batch) or axis.values)
            if len(axis.values) > 1 or chosen is not None:
                label = knob if own else f"{name}{SEPARATOR}{knob}"
                dimensions.append(Dimension(label, axis.values, axis.ordered, axis.reloads))
    return Space(tuple(dimensions))


def _default_knobs(
    settings: TuneSettings, name: str, *, own: bool, narrow: str | None
) -> dict[str, tuple[Value, ...] | None]:
    if any(model for model in settings.knobs if model) and not own:
        return {}  # the user chose stages
    if narrow is not None and name != narrow:
        return {_INSTANCES: None}
    return {knob.name: None for knob in KNOBS.values() if knob.default}


def _check(knob: str, values: tuple[Value, ...] | None, model: str, document: Document, engines: Sequence[str]) -> None:
    if knob in KNOBS and KNOBS[knob].engine and KNOBS[knob].applies(document):
        if values is None:
            raise KnobError(f"knob '{knob}' needs values, such as {knob}=16,64")
        if model not in engines:
            raise KnobError(
                f"knob '{knob}' stands in the engine's model.json, which cannot be sent to a server: "
                "--repository names the local folder of the repository"
            )


def current_point_settings(
    space: Space, model: str, documents: Mapping[str, Document], load: Value
) -> dict[str, Value]:
    """Return the values of the current configuration for each dimension."""
    settings: dict[str, Value] = {LOAD: load}
    for label in (axis.name for axis in space.dimensions):
        stage, separator, knob = label.partition(SEPARATOR)
        owner, name = (stage, knob) if separator else (model, label)
        if owner in documents:
            known = current_settings(documents[owner], [name])
            if name in known:
                settings[label] = known[name]
    return settings
