"""Runs as a table for terminals, as JSON, and as one HTML page."""

import json
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from conch.base.durations import duration_text
from conch.base.report.axis import Axis, clock, percent, round_times
from conch.base.report.chart import Chart, ChartPoint, ChartSeries, draw
from conch.base.report.page import charts, table, tag
from conch.base.report.page import page as report_page
from conch.operate.scaling.simulation.engine import SimulationRun
from conch.operate.scaling.simulation.judgement import flapping, remarks

_WIDTH = 120
_BARS = "▁▂▃▄▅▆▇█"
_COLUMNS = 80  # beside the name and the bars
_SERIES_STEP_S = 60


def report(runs: Sequence[SimulationRun], winner: SimulationRun) -> str:
    """Return the comparison as text."""
    scenario = runs[0].scenario
    stream = StringIO()
    console = Console(file=stream, width=_WIDTH, highlight=False)
    rates = scenario.traffic.rates
    target = "first token" if scenario.slo_is_first_token else "answer"
    hours = scenario.traffic.duration_s / 3600
    console.print(
        f"{scenario.traffic.name}: {_count(scenario.traffic.requests)} requests in {hours:g} h, {rates.min():,.0f} to "
        f"{rates.max():,.0f}/s. A replica serves {scenario.service.capacity:,.1f}/s and is ready after "
        f"{scenario.cold_start.total_s} s. Objective: {100 * scenario.objective:g} % with the {target} within "
        f"{duration_text(scenario.slo_s)}.\n"
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("policy", no_wrap=True)
    for title in ("missed", "replica-hours", "% × hours", "replicas", "max. in flight", "changes"):
        table.add_column(title, justify="right")
    table.add_column("ready replicas")
    highest = max(int(compared.ready.max()) for compared in runs)
    cells = max(_WIDTH - _COLUMNS - max(len(compared.name) for compared in runs), 10)
    for run in runs:
        style = "bold green" if run is winner and run.meets_objective else "bold" if run is winner else ""
        table.add_row(
            run.name,
            f"{100 * run.miss_share:.2f} %",
            f"{run.replica_hours:,.1f}",
            f"{run.cost:,.1f}",
            f"{run.ready.min()}–{run.ready.max()}",
            _count(run.max_inside),
            str(len(run.events)),
            sparkline(run.ready, highest, cells),
            style=style,
        )
    table.add_row("load", "", "", "", "", "", "", sparkline(rates, float(rates.max()), cells), style="dim")
    console.print(table)
    for run in runs:
        for remark in remarks(run):
            console.print(f"{run.name}: {remark}", soft_wrap=True)
    verdict = (
        "meets the objective with the fewest replica-hours" if winner.meets_objective else "misses the fewest requests"
    )
    console.print(f"\n{winner.name} {verdict}.", soft_wrap=True)
    return "".join(f"{line.rstrip()}\n" for line in stream.getvalue().splitlines())


def sparkline(values: NDArray[Any], highest: float, cells: int) -> str:
    """Return the largest values of equal parts of the time as bars."""
    parts = np.array_split(values, min(cells, len(values)))
    scale = (len(_BARS) - 1) / max(highest, 1e-9)
    return "".join(_BARS[min(round(float(part.max()) * scale), len(_BARS) - 1)] for part in parts)


def document(runs: Sequence[SimulationRun], winner: str) -> str:
    """Return all results as JSON, with a value for each minute."""
    scenario = runs[0].scenario
    shown = {
        "traffic": scenario.traffic.name,
        "requests": round(scenario.traffic.requests),
        "duration_s": scenario.traffic.duration_s,
        "replica_capacity": scenario.service.capacity,
        "slo_s": scenario.slo_s,
        "objective": scenario.objective,
        "series_step_s": _SERIES_STEP_S,
        "rates": [round(rate, 3) for rate in by_minute(scenario.traffic.rates)],
        "winner": winner,
        "policies": [_run(run) for run in runs],
    }
    return json.dumps(shown, indent=1) + "\n"


def _run(run: SimulationRun) -> dict[str, Any]:
    worst = flapping(run.events)
    return {
        "name": run.name,
        "miss_share": run.miss_share,
        "replica_hours": run.replica_hours,
        "cost": run.cost,
        "max_in_flight": run.max_inside,
        "meets_objective": run.meets_objective,
        "flapping": None if worst is None else {"turns": worst.turns, "at_s": worst.at_s},
        "remarks": remarks(run),
        "reasons": dict(run.reasons),
        "events": [[event.at_s, event.before, event.after] for event in run.events],
        "ready": [round(value, 2) for value in by_minute(run.ready)],
        "wanted": [round(value, 2) for value in by_minute(run.wanted)],
        "misses": [round(value, 3) for value in by_minute(run.misses)],
    }


def by_minute(values: NDArray[Any]) -> list[float]:
    """Return the mean of each minute."""
    whole = len(values) // _SERIES_STEP_S * _SERIES_STEP_S
    if not whole:
        return [float(values.mean())]
    return [float(mean) for mean in values[:whole].reshape(-1, _SERIES_STEP_S).mean(axis=1)]


def _count(number: float) -> str:
    for bound, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if number >= bound:
            return f"{number / (1e3 if unit == 'k' else bound):,.1f} {unit}"
    return f"{number:,.0f}"


_MIN_MISSED = 0.001  # of the requests of a minute: less is not drawn


def page(runs: Sequence[SimulationRun], winner: str) -> str:
    """Return the page."""
    scenario = runs[0].scenario
    rows = [
        (
            run.name + " ★" * (run.name == winner),
            f"{100 * run.miss_share:.2f} %",
            f"{run.replica_hours:,.1f}",
            f"{run.cost:,.1f}",
            f"{run.ready.min()}–{run.ready.max()}",
            f"{len(run.events)}",
        )
        for run in runs
    ]
    marked = [index for index, run in enumerate(runs) if run.name == winner]
    lead = f"{scenario.traffic.name}; objective {100 * scenario.objective:g} % within {scenario.slo_s:g} s; "
    lead += f"cold start {scenario.cold_start.total_s} s"
    head = ("policy", "missed", "replica-hours", "% × hours", "replicas", "changes")
    return report_page(
        "Autoscaling, simulated",
        tag("p", lead, class_="lead"),
        table(head, rows, "Policies", marked=marked),
        _load(runs[0]),
        map(_section, runs),
        kind="Simulation",
    )


def _load(run: SimulationRun) -> Markup:
    """Return the load, which all policies share."""
    load = _line("load", by_minute(run.scenario.traffic.rates), 7)
    return charts([draw(Chart("Load", _time(run), Axis("requests per second"), [load]))])


def _section(run: SimulationRun) -> Markup:
    shares = by_minute(run.misses / run.scenario.traffic.rates.clip(1e-9))
    replicas = [_line("wanted", by_minute(run.wanted), 4), _line("ready", by_minute(run.ready), 0)]
    drawn = [Chart("Replicas", _time(run), Axis("replicas"), replicas)]
    if max(shares) >= _MIN_MISSED:
        missed = replace(_line("missed", shares, 5), kind="area")
        drawn.append(
            Chart("Requests that missed the objective", _time(run), Axis("share of requests", percent), [missed])
        )
    return tag(
        "section",
        tag("h2", run.name),
        tag("ul", (tag("li", remark) for remark in remarks(run))),
        charts(map(draw, drawn)),
    )


def _time(run: SimulationRun) -> Axis:
    end = float(run.scenario.traffic.duration_s)
    return Axis("time since the start", clock, ticks=round_times(end, 6), tight=True, include=(end,))


def _line(name: str, values: Sequence[float], color: int) -> ChartSeries:
    """Return a value for each minute as steps."""
    return ChartSeries(name, [ChartPoint(60.0 * minute, value) for minute, value in enumerate(values)], "steps", color)
