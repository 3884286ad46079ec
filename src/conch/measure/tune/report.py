"""The report in the terminal, and as one HTML file: charts, tables, differences."""

from collections.abc import Mapping, Sequence

from markupsafe import Markup
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from conch.base.control_characters import printable
from conch.base.report.axis import Axis, number, seconds
from conch.base.report.chart import Chart, ChartPoint, ChartSeries, draw, draw_heat_map
from conch.base.report.page import charts, table, tag
from conch.base.report.page import page as report_page
from conch.base.report.page import verdict as verdict_box
from conch.measure.bench.report.fact_tables import FactTable
from conch.measure.tune.knobs import LOAD
from conch.measure.tune.outcome import TuneOutcome, best_compromises, measured_configurations
from conch.measure.tune.space import Value
from conch.measure.tune.state.folder import Trial
from conch.measure.tune.wording import (
    effect_table,
    figure_text,
    finalist_table,
    settings_text,
    stage_table,
    value_text,
    verdict,
)


def page(outcome: TuneOutcome) -> str:
    """Return the report."""
    facts = f"{outcome.server} at {outcome.url}; {outcome.goal}; {outcome.duration_s:.0f} s; "
    facts += f"search: {outcome.strategy}, {len(outcome.trials)} trials, grid of {outcome.space_size}"
    parts = [tag("p", facts, class_="lead"), verdict_box([verdict(outcome)], "" if outcome.winner else "warning")]
    drawn = [*_compromises(outcome), *_heat_maps(outcome)]
    parts.append(charts(drawn) if drawn else tag("p", "No trial succeeded."))
    winners = [index for index, finalist in enumerate(outcome.finalists) if finalist.name == outcome.winner]
    parts += _section("Stages", stage_table(outcome))
    parts += _section("Finalists", finalist_table(outcome), marked=winners)
    parts += _section("Effect of each knob", effect_table(outcome))
    for model, diff in outcome.diffs.items():
        parts += [tag("h2", f"config.pbtxt of {model}"), tag("pre", map(_diff_line, diff.splitlines()))]
    parts += _trials(outcome.trials)
    return report_page(f"Tuning of {outcome.model}", parts, kind=f"Tuning · {outcome.started_at}")


def _section(title: str, facts: FactTable, **more: Sequence[int]) -> list[Markup]:
    return [tag("h2", title), table(facts.head, facts.rows, title, **more)] if facts.rows else []


def _compromises(outcome: TuneOutcome) -> list[Markup]:
    """Return a dot for each configuration and load, and the front of the best compromises."""
    known = measured_configurations(outcome.trials, outcome.current)
    if not known:
        return []
    front = best_compromises(outcome.trials, outcome.current)
    current = [trial for trial in known if _is_current(trial.settings, outcome.current)]
    others = [trial for trial in known if trial not in front and trial not in current]

    def dots(trials: Sequence[Trial]) -> list[ChartPoint]:
        points = []
        for trial in trials:
            figures, load = trial.figures, value_text(trial.settings.get(LOAD))
            note = f"{settings_text(trial.settings, outcome.current)}, load {load}: {figures['throughput']:.1f}/s"
            points.append(ChartPoint(figures["throughput"], figures["p99"], note=note))
        return points

    series = [
        ChartSeries("other configurations", dots(others), "dots", 7),
        ChartSeries("best compromises", dots(front), "dotted line", 0),
        ChartSeries("current configuration", dots(current), "dots", 1),
    ]
    summary = "One dot for each configuration and load: the median of its measurements."
    across, down = Axis("requests per second", number), Axis("P99 latency", seconds)
    shown = [line for line in series if line.points]
    return [draw(Chart("Throughput and latency", across, down, shown, summary))]


def _is_current(settings: Mapping[str, Value], current: Mapping[str, Value]) -> bool:
    return all(name in current and current[name] == value for name, value in settings.items() if name != LOAD)


def _heat_maps(outcome: TuneOutcome) -> list[Markup]:
    """Return the highest throughput at each load for the values of each knob that was tried with several."""
    known = measured_configurations(outcome.trials, outcome.current)
    loads = outcome.space.get(LOAD, ())
    maps = []
    for knob, values in outcome.space.items():
        if knob == LOAD or len(values) < 2 or len(loads) < 2:
            continue
        best: dict[tuple[Value, Value], float] = {}
        for trial in known:
            cell = trial.settings.get(knob), trial.settings.get(LOAD)
            best[cell] = max(best.get(cell, 0.0), trial.figures["throughput"])
        rows = [(value_text(value), [best.get((value, load)) for load in loads]) for value in values]
        if any(value is not None for _, row in rows for value in row):
            summary = f"Highest throughput, in requests per second, that was measured with each value of {knob} (rows) "
            summary += "at each load (columns), whatever the other knobs."
            maps.append(draw_heat_map(f"{knob} and load", list(map(value_text, loads)), rows, summary=summary))
    return maps


def _trials(trials: Sequence[Trial]) -> list[Markup]:
    rows = tuple(
        (settings_text(t.settings), value_text(t.settings.get(LOAD)), f"{t.effort:g}", t.purpose,
         figure_text("throughput", t.figures.get("throughput")), figure_text("p99", t.figures.get("p99")), t.failure)
        for t in trials
    )  # fmt: skip
    head = ("configuration", "load", "effort", "purpose", "throughput", "p99", "failure")
    return _section("Trials", FactTable(head, rows), prose=(6,))


def _diff_line(line: str) -> Markup:
    return tag("span", f"{line}\n", class_={"+": "added", "-": "removed"}.get(line[:1]))


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
    for column, title in enumerate(facts.head):
        table.add_column(title, justify="left" if column == 0 else "right", overflow="fold")
    for row, is_marked in zip(facts.rows, marked or [False] * len(facts.rows), strict=True):
        table.add_row(*(escape(printable(cell)) for cell in row), style=style if is_marked else "")
    console.print(table)


def _front(outcome: TuneOutcome) -> FactTable:
    rows = tuple(
        (settings_text(trial.settings, outcome.current), value_text(trial.settings.get(LOAD)),
         *(figure_text(name, trial.figures[name]) for name in ("throughput", "p99")))
        for trial in best_compromises(outcome.trials, outcome.current)
    )  # fmt: skip
    return FactTable(("best compromises", "load", "throughput", "p99"), rows)
