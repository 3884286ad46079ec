"""Tables for a terminal."""

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from conch.measure.tune.knobs import LOAD
from conch.measure.tune.outcome import TuneOutcome, best_compromises
from conch.measure.tune.report.wording import (
    effect_texts,
    figure_text,
    finalist_label,
    gain_text,
    metric_columns,
    settings_text,
    value_text,
    verdict,
)

_DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def print_outcome(outcome: TuneOutcome, console: Console) -> None:
    """Print finalists, effects, front, differences and the verdict."""
    if outcome.stages:
        _print_stages(outcome, console)
    if outcome.finalists:
        _print_finalists(outcome, console)
    if outcome.effects:
        _print_effects(outcome, console)
    _print_front(outcome, console)
    for diff in outcome.diffs.values():
        for line in diff.splitlines():
            console.print(Text(line, style=_DIFF_STYLES.get(line[:1], "")))
    failed = [trial for trial in outcome.trials if trial.failure]
    measured = len(outcome.trials) - outcome.reused
    share = f"{len([t for t in outcome.trials if t.purpose == 'search'])} of {outcome.space_size} in the grid"
    console.print(
        Text(
            f"{measured} trials measured, {outcome.reused} reused, {len(failed)} failed; searched {share}; "
            f"{outcome.duration_s:.0f} s" + (f"; ended early: {outcome.ended}" if outcome.ended else "")
        )
    )
    for failure in dict.fromkeys(trial.failure for trial in failed):
        console.print(Text(f"failed: {failure}", style="yellow"))
    console.print(Text(verdict(outcome), style="bold"))


def _table(*columns: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right", overflow="fold")
    return table


def _print_stages(outcome: TuneOutcome, console: Console) -> None:
    table = _table("stage", "queue", "compute", "busy instances")
    for stage in outcome.stages:
        busy = f"{stage.busy_instances:.1f} of {stage.instances}"
        style = "bold" if stage.model == outcome.bottleneck else ""
        times = (f"{time_s * 1e3:.1f} ms" for time_s in (stage.queue_s, stage.compute_s))
        table.add_row(stage.model, *times, busy, style=style)
    console.print(table)
    if outcome.bottleneck is not None:
        console.print(Text(f"bottleneck: {outcome.bottleneck}"))


def _print_finalists(outcome: TuneOutcome, console: Console) -> None:
    columns = metric_columns(outcome)
    table = _table("configuration", "load", *columns, "gain", "constraints")
    gains = {gain.name: gain_text(gain) for gain in outcome.gains}
    for finalist in outcome.finalists:
        label = finalist_label(finalist, outcome.current)
        figures = (figure_text(name, finalist.figures.get(name)) for name in columns)
        met = "met" if finalist.feasible else "not met"
        style = "bold green" if finalist.name == outcome.winner else ""
        load = value_text(finalist.settings.get(LOAD))
        table.add_row(label, load, *figures, gains.get(finalist.name, ""), met, style=style)
    console.print(table)


def _print_effects(outcome: TuneOutcome, console: Console) -> None:
    names = list(dict.fromkeys(name for effect in outcome.effects for name in effect.ratios))
    table = _table("knob, other knobs equal", "trials", *names)
    for effect in outcome.effects:
        texts = effect_texts(effect)
        row = (texts.get(name, "") for name in names)
        table.add_row(f"{effect.knob}={value_text(effect.value)}", str(effect.trials), *row)
    console.print(table)


def _print_front(outcome: TuneOutcome, console: Console) -> None:
    front = best_compromises(outcome.trials, outcome.current)
    if not front:
        return
    table = _table("best compromises", "load", "throughput", "p99")
    for trial in front:
        figures = (figure_text(name, trial.figures[name]) for name in ("throughput", "p99"))
        table.add_row(settings_text(trial.settings, outcome.current), value_text(trial.settings.get(LOAD)), *figures)
    console.print(table)
