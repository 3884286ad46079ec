"""Tables for a terminal."""

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from conch.measure.tune.effects import best_compromises
from conch.measure.tune.knobs import LOAD
from conch.measure.tune.outcome import TuneOutcome
from conch.measure.tune.report.wording import (
    effect_texts,
    figure_text,
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
    for each in outcome.stages:
        busy = f"{each.busy_instances:.1f} of {each.instances}"
        style = "bold" if each.model == outcome.bottleneck else ""
        table.add_row(each.model, f"{each.queue_s * 1e3:.1f} ms", f"{each.compute_s * 1e3:.1f} ms", busy, style=style)
    console.print(table)
    if outcome.bottleneck is not None:
        console.print(Text(f"bottleneck: {outcome.bottleneck}"))


def _print_finalists(outcome: TuneOutcome, console: Console) -> None:
    columns = metric_columns(outcome)
    table = _table("configuration", "load", *columns, "gain", "constraints")
    gains = {gain.name: gain_text(gain) for gain in outcome.gains}
    for each in outcome.finalists:
        label = each.name if each.name == "current" else f"{each.name}: {settings_text(each.settings, outcome.current)}"
        figures = (figure_text(name, each.figures.get(name)) for name in columns)
        met = "met" if each.feasible else "not met"
        style = "bold green" if each.name == outcome.winner else ""
        load = value_text(each.settings.get(LOAD))
        table.add_row(label, load, *figures, gains.get(each.name, ""), met, style=style)
    console.print(table)


def _print_effects(outcome: TuneOutcome, console: Console) -> None:
    names = list(dict.fromkeys(name for each in outcome.effects for name in each.ratios))
    table = _table("knob, other knobs equal", "trials", *names)
    for each in outcome.effects:
        texts = effect_texts(each)
        row = (texts.get(name, "") for name in names)
        table.add_row(f"{each.knob}={value_text(each.value)}", str(each.trials), *row)
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
