"""The report as files: JSON, charts, and a page that contains both. The functions are pure; the caller writes."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from math import nan
from typing import Any

from conch.base.report.axis import Axis, clock, number, round_times, seconds
from conch.base.report.chart import Chart, ChartMark, ChartPoint, ChartSeries, draw
from conch.base.report.page import charts, embedded_json, page, table, tag
from conch.base.report.page import verdict as verdict_box
from conch.operate.fleet.journal import FleetSample, FleetVerdict, Journal


def document(settings: Mapping[str, Any], journal: Journal, verdict: FleetVerdict | None) -> dict[str, Any]:
    """Return the report as values of JSON."""
    found = None
    if verdict is not None:
        found = {**asdict(verdict), "peak": verdict.peak, "scaled": verdict.scaled, "passed": verdict.passed}
    return {
        "format": "conch-fleet-1",
        "settings": dict(settings),
        "verdict": found,
        "events": [asdict(event) for event in journal.events],
        "samples": [_rounded(sample) for sample in journal.samples],
    }


def _rounded(sample: FleetSample) -> dict[str, Any]:
    return {
        name: round(value, 4) if isinstance(value, float) else value
        for name, value in asdict(sample).items()
        if value is not None
    }


def to_json(report: Mapping[str, Any]) -> str:
    """Return a report as JSON."""
    return json.dumps(report, indent=1) + "\n"


def fleet_charts(samples: Sequence[FleetSample], metric: str, target: float) -> list[Chart]:
    """Return replicas, the metric of the policy, latency and clients over time."""
    end = max((sample.at_s for sample in samples), default=0.0) or 1.0
    time = Axis("time since the start", text=clock, ticks=round_times(end, 6), tight=True, include=(end,))

    def line(name: str, read: Callable[[FleetSample], float | None], color: int, *, steps: bool = True) -> ChartSeries:
        points = [ChartPoint(sample.at_s, nan if (value := read(sample)) is None else value) for sample in samples]
        return ChartSeries(name, points, "steps" if steps else "line", color)

    def chart(title: str, *lines: ChartSeries, unit: str = "", text: Callable[[float], str] = number) -> Chart:
        return Chart(title, time, Axis(unit, text), lines)

    ratio = chart(f"{metric}, average of the replicas", line(metric, lambda sample: sample.ratio, 3))
    return [
        chart(
            "Replicas",
            line("desired", lambda sample: sample.desired, 4),
            line("ready", lambda sample: sample.ready, 0),
            unit="replicas",
        ),
        replace(ratio, marks=[ChartMark(f"target {number(target)}", y=target)]),
        chart(
            "Latency of the clients",
            line("P50", lambda sample: sample.p50_s, 2, steps=False),
            line("P99", lambda sample: sample.p99_s, 1, steps=False),
            unit="latency",
            text=seconds,
        ),
        chart("Clients", line("clients", lambda sample: sample.clients, 7), unit="clients"),
    ]


def to_page(
    title: str, note: str, report: Mapping[str, Any], journal: Journal, lines: Sequence[str], drawn: Sequence[Chart]
) -> str:
    """Return the report as a page that contains its JSON."""
    events = [(f"{event.at_s:.1f} s", event.kind, event.subject, event.message) for event in journal.events]
    passed = report["verdict"] is not None and report["verdict"]["passed"]
    return page(
        title,
        tag("p", note, class_="lead"),
        verdict_box(lines, "" if passed else "invalid") if lines else "",
        charts(map(draw, drawn)),
        tag("h2", "Events"),
        table(("after", "event", "of", ""), events, "Events", prose=(1, 2, 3)),
        kind="Fleet",
        data=embedded_json(json.dumps(report), "report"),
    )
