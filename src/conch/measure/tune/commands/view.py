"""The progress of `conch tune`: one line that changes in a terminal, plain lines elsewhere."""

import sys
from collections.abc import Mapping

from conch.measure.tune.knobs import LOAD
from conch.measure.tune.objective import Goal
from conch.measure.tune.report.wording import figure_text, settings_text, value_text
from conch.measure.tune.space import Value
from conch.measure.tune.state.trial_log import Trial
from conch.measure.tune.tuner import TuneView

_MAX_FIGURES = 4


class PlainTuneView(TuneView):
    """One line a trial, on stderr."""

    def __init__(self, goal: Goal) -> None:
        names = [
            *(objective.metric for objective in goal.objectives),
            *(constraint.metric for constraint in goal.constraints),
        ]
        self._figures = list(dict.fromkeys([*names, "throughput", "p99"]))[:_MAX_FIGURES]
        self._head = ""

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def begin(self, settings: Mapping[str, Value], number: int, expected: int, purpose: str) -> None:
        total = f" of {expected}" if expected and purpose == "search" else ""
        load = value_text(settings[LOAD])
        self._head = f"{purpose} {number}{total}: {settings_text(settings)}, load {load}"

    def end(self, trial: Trial, score: float | None, *, best: bool) -> None:
        del score
        if trial.failure:
            result = f"failed: {trial.failure}"
        else:
            figures = (figure_text(name, trial.figures.get(name)) for name in self._figures)
            result = ", ".join(f"{name} {text}" for name, text in zip(self._figures, figures, strict=True) if text)
        mark = " (best so far)" if best and trial.purpose == "search" else ""
        self.say(f"{self._head}: {result}{mark}")

    def close(self) -> None:
        """End the view."""


class TerminalTuneView(PlainTuneView):
    """As the plain one, with a line for the trial that runs. Without threads: load generators are forked."""

    def begin(self, settings: Mapping[str, Value], number: int, expected: int, purpose: str) -> None:
        super().begin(settings, number, expected, purpose)
        width = 79
        sys.stderr.write(f"\r\x1b[2K{self._head[:width]} …")
        sys.stderr.flush()

    def say(self, text: str) -> None:
        sys.stderr.write("\r\x1b[2K")
        super().say(text)

    def close(self) -> None:
        sys.stderr.write("\r\x1b[2K")
        sys.stderr.flush()


def tune_view(goal: Goal) -> PlainTuneView:
    """Return the view that suits stderr."""
    return TerminalTuneView(goal) if sys.stderr.isatty() else PlainTuneView(goal)
