"""What fits into a time budget: shorter windows, and how many measurements each part of a run gets. Pure."""

from dataclasses import dataclass, replace
from math import ceil

from conch.measure.tune.settings import TrialSettings, TuneSettings

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
