"""One run of `conch tune`: search, progress, report, apply, restore."""

import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING

from conch.base.command_line.files import write_text
from conch.base.command_line.say import ERASE_LINE, in_place, say
from conch.base.control_characters import printable
from conch.machine.cores import usable_cores
from conch.measure.tune.knobs import LOAD
from conch.measure.tune.objective import Goal
from conch.measure.tune.planning import fit_to_budget
from conch.measure.tune.repository_client import RepositoryClient
from conch.measure.tune.space import Value
from conch.measure.tune.state.folder import StateFolder, Trial
from conch.measure.tune.state.session import ModelSession
from conch.measure.tune.tune_settings import TuneFlags, TuneSettings
from conch.measure.tune.tuner import TuneContext, Tuner, TuneView
from conch.measure.tune.wording import figure_text, settings_text, value_text

if TYPE_CHECKING:
    from conch.measure.tune.outcome import TuneOutcome
    from conch.measure.tune.state.applied import FileChange


_MAX_FIGURES = 4


class PlainTuneView(TuneView):
    """One line a trial, on stderr."""

    def __init__(self, goal: Goal) -> None:
        self._figures = list(dict.fromkeys([*goal.metrics, "throughput", "p99"]))[:_MAX_FIGURES]
        self._head = ""

    def say(self, text: str) -> None:
        say(text)

    def begin(self, settings: Mapping[str, Value], number: int, expected: int, purpose: str) -> None:
        total = f" of {expected}" if expected and purpose == "search" else ""
        load = value_text(settings[LOAD])
        self._head = f"{purpose} {number}{total}: {settings_text(settings)}, load {load}"

    def end(self, trial: Trial, *, best: bool) -> None:
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
        sys.stderr.write(in_place(printable(self._head), sys.stderr))
        sys.stderr.flush()

    def say(self, text: str) -> None:
        sys.stderr.write(ERASE_LINE)
        super().say(text)

    def close(self) -> None:
        sys.stderr.write(ERASE_LINE)
        sys.stderr.flush()


def tune_view(goal: Goal) -> PlainTuneView:
    """Return the view that suits stderr."""
    return TerminalTuneView(goal) if sys.stderr.isatty() else PlainTuneView(goal)


_FAILURE, _INTERRUPTED = 1, 130
_REMOTE_CORES = 4


@contextmanager
def interruptible(context: TuneContext) -> Iterator[None]:
    """Treat SIGTERM and SIGHUP as Ctrl-C: the run ends, and the models are restored.

    `context` records it, since Python drops an exception that is raised within a callback, such as those of fork.
    """

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        context.interrupted = True
        raise KeyboardInterrupt

    with _handlers(dict.fromkeys((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), interrupt)):
        yield


@contextmanager
def uninterruptible() -> Iterator[None]:
    """Finish what must not be left half done; SIGKILL remains."""

    def refuse(_number: int, _frame: FrameType | None) -> None:
        say("restoring the models; this ends by itself")

    with _handlers(dict.fromkeys((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), refuse)):
        yield


@contextmanager
def _handlers(handlers: Mapping[signal.Signals, object]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}  # type: ignore[arg-type]
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run(flags: TuneFlags, settings: TuneSettings) -> int:
    """Tune one model and restore it, whatever happens. Returns the exit status.

    Raises BudgetTooShort, KnobError, TuneError and TuningInProgress before the first trial, ServerRefusal,
    ServerUnreachable, OSError.
    """
    from conch.measure.tune.trials import BenchMeter, trial_observers

    plan = fit_to_budget(settings)
    settings = plan.settings
    access = flags.access()
    client = RepositoryClient(access)
    client.server()
    folder = StateFolder.of(flags.state_directory(), access.url, settings.model)
    view = tune_view(settings.goal)
    observers = trial_observers(access, settings)
    context = TuneContext(
        client,
        folder,
        BenchMeter(access, settings.model, settings.trial, observers),
        view,
        usable_cores() if access.is_local else _REMOTE_CORES,
        flags.repository,
        flags.fresh,
        flags.server_wait,
    )
    if plan.text:
        say(plan.text)
    session = ModelSession(client, folder, settings.model, say)
    session.open()
    failures: list[str] = []
    try:
        with interruptible(context):
            tuner = Tuner(settings, context, session)
            outcome = tuner.run()
        view.close()
        outcome = _with_differences(flags, tuner, outcome)
        _report(flags, outcome)
        if flags.apply and outcome.winner is not None:
            _apply(flags, client, folder, session, tuner, outcome)
    finally:
        view.close()
        with uninterruptible():
            failures = session.restore(flags.server_wait)
            for failure in failures:
                say(failure)
            session.close()
    if failures or outcome.ended.startswith("the server is gone"):
        return _FAILURE
    return _INTERRUPTED if outcome.ended == "interrupted" else 0


def _file_changes(
    flags: TuneFlags, tuner: Tuner, settings: Mapping[str, Value], model: str
) -> list[tuple[str, "FileChange"]]:
    """Return the files of the local repository that settings change, each with its model."""
    from conch.measure.tune.deployment import split_settings
    from conch.measure.tune.state.applied import FileChange, file_change

    changes = []
    assert flags.repository is not None
    for name, own in split_settings(model, settings).items():
        if (change := file_change(flags.repository, name, tuner.documents[name], own)) is not None:
            changes.append((name, change))
    texts = tuner.deployment.engine_texts(settings)
    return [*changes, *((name, FileChange(str(path), old, new)) for name, (path, old, new) in texts.items())]


def _with_differences(flags: TuneFlags, tuner: Tuner, outcome: "TuneOutcome") -> "TuneOutcome":
    """Return the outcome with the differences of the files that the winner changes."""
    from conch.measure.tune.deployment import split_settings
    from conch.measure.tune.state.applied import fields_difference, file_difference

    finalist = outcome.finalist(outcome.winner or "")
    if finalist is None:
        return outcome
    diffs: dict[str, str] = {}
    if flags.repository is not None:
        for name, change in _file_changes(flags, tuner, finalist.settings, outcome.model):
            diffs[name] = diffs.get(name, "") + file_difference(change)
    else:
        for name, own in split_settings(outcome.model, finalist.settings).items():
            if text := fields_difference(name, tuner.documents[name], own):
                diffs[name] = text
    return replace(outcome, diffs=diffs)


def _apply(
    flags: TuneFlags,
    client: RepositoryClient,
    folder: StateFolder,
    session: ModelSession,
    tuner: Tuner,
    outcome: "TuneOutcome",
) -> None:
    """Keep the winner, if it changes the model and not only the load.

    Raises ServerRefusal, ServerUnreachable, OSError; then the models are restored.
    """
    from conch.measure.tune.state.applied import apply_to_repository, apply_to_server
    from conch.measure.tune.state.saved_state import SavedModel

    finalist = outcome.finalist(outcome.winner or "")
    if finalist is None or not outcome.diffs:
        return
    saved = tuple(SavedModel(name, tuner.documents[name]) for name in outcome.diffs)
    with uninterruptible():
        failures = session.restore(flags.server_wait)
        if failures:
            raise RuntimeError("; ".join(failures))
        if flags.repository is None:
            documents = tuner.deployment.documents(finalist.settings)
            apply_to_server(client, folder, {name: documents[name] for name in outcome.diffs}, saved)
            where = "on the server, until the model is loaded again; --repository DIR --apply writes config.pbtxt"
        else:
            changes = _file_changes(flags, tuner, finalist.settings, outcome.model)
            apply_to_repository(client, folder, changes, saved)
            where = f"to {', '.join(change.path for _, change in changes)}; --rollback undoes it"
    say(f"applied {where}")


def _report(flags: TuneFlags, outcome: "TuneOutcome") -> None:
    from rich.console import Console

    from conch.measure.tune.outcome import to_json
    from conch.measure.tune.report import page, print_outcome

    print_outcome(outcome, Console(width=None if sys.stdout.isatty() else 160, highlight=False))
    if flags.json is not None:
        write_text("conch tune", flags.json, to_json(outcome))
    if flags.html is not None:
        write_text("conch tune", flags.html, page(outcome))
