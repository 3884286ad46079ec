"""Tables for a terminal."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from conch.base.control_characters import printable
from conch.measure.bench.report.fact_tables import FactTable
from conch.measure.tune.knobs import LOAD
from conch.measure.tune.outcome import TuneOutcome, best_compromises
from conch.measure.tune.report.wording import (
    effect_table,
    figure_text,
    finalist_table,
    settings_text,
    stage_table,
    value_text,
    verdict,
)

_DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def print_outcome(outcome: TuneOutcome, console: Console) -> None:
    """Print finalists, effects, front, differences and the verdict."""
    _print(console, stage_table(outcome), [stage.model == outcome.bottleneck for stage in outcome.stages], "bold")
    if outcome.bottleneck is not None:
        console.print(Text(printable(f"bottleneck: {outcome.bottleneck}")))
    winners = [finalist.name == outcome.winner for finalist in outcome.finalists]
    _print(console, finalist_table(outcome), winners, "bold green")
    _print(console, effect_table(outcome))
    _print(console, _front(outcome))
    for diff in outcome.diffs.values():
        for line in diff.splitlines():
            console.print(Text(printable(line), style=_DIFF_STYLES.get(line[:1], "")))
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
        console.print(Text(printable(f"failed: {failure}"), style="yellow"))
    console.print(Text(printable(verdict(outcome)), style="bold"))


def _print(console: Console, facts: FactTable, marked: Sequence[bool] = (), style: str = "") -> None:
    """Print a table, if it has rows; those that are marked in a style."""
    if not facts.rows:
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for number, title in enumerate(facts.head):
        table.add_column(title, justify="left" if number == 0 else "right", overflow="fold")
    for number, row in enumerate(facts.rows):
        table.add_row(*(escape(printable(cell)) for cell in row), style=style if marked and marked[number] else "")
    console.print(table)


def _front(outcome: TuneOutcome) -> FactTable:
    rows = tuple(
        (settings_text(trial.settings, outcome.current), value_text(trial.settings.get(LOAD)),
         *(figure_text(name, trial.figures[name]) for name in ("throughput", "p99")))
        for trial in best_compromises(outcome.trials, outcome.current)
    )  # fmt: skip
    return FactTable(("best compromises", "load", "throughput", "p99"), rows)
