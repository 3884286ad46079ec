"""Comparison of finalists with the current configuration, measured in interleaved rounds. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, sqrt
from statistics import fmean, median, stdev

from conch.measure.bench.statistics.quantile_functions import t_quantile
from conch.measure.tune.objective import Goal


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
