"""Runs as one HTML page: a table, and a chart for each policy."""

from collections.abc import Sequence
from dataclasses import replace

from markupsafe import Markup

from conch.base.report.axis import Axis, clock, percent, round_times
from conch.base.report.chart import Chart, ChartPoint, ChartSeries, draw
from conch.base.report.page import charts, table, tag
from conch.base.report.page import page as report_page
from conch.operate.scaling.commands.table import by_minute
from conch.operate.scaling.simulation.engine import SimulationRun
from conch.operate.scaling.simulation.judgement import remarks

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
