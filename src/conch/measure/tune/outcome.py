"""What a run found: the JSON report is these classes, field by field."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from conch.measure.tune.space import Value
from conch.measure.tune.state.trial_log import Trial
from conch.measure.tune.trials.comparison import Gain
from conch.measure.tune.trials.stages import StageLoad

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
