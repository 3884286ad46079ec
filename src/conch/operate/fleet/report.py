"""What `conch fleet` shows: the report as files, and while it runs a live screen or plain lines.

The report is JSON, charts, and a page that contains both. Its functions are pure; the caller writes.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from math import nan
from time import monotonic
from typing import TYPE_CHECKING, Any

from conch.base.report.axis import Axis, clock, number, round_times, seconds
from conch.base.report.chart import Chart, ChartMark, ChartPoint, ChartSeries, draw
from conch.base.report.page import charts, embedded_json, page, table, tag
from conch.base.report.page import verdict as verdict_box
from conch.operate.fleet.fleet import Fleet
from conch.operate.fleet.journal import FleetEvent, FleetSample, FleetVerdict, Journal

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live


def document(settings: Mapping[str, Any], journal: Journal, verdict: FleetVerdict | None) -> dict[str, Any]:
    """Return the report as values of JSON."""
    outcome = None
    if verdict is not None:
        outcome = {**asdict(verdict), "peak": verdict.peak, "scaled": verdict.scaled, "passed": verdict.passed}
    return {
        "format": "conch-fleet-1",
        "settings": dict(settings),
        "verdict": outcome,
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


_MAX_EVENTS = 8


def status_line(sample: FleetSample, targets: str) -> str:
    """Return a state in one line."""
    text = f"{sample.at_s:6.1f} s  replicas {sample.ready}/{sample.desired} ready  targets {targets}"
    if sample.clients or sample.answered:
        text += f"  clients {sample.clients}  {sample.rate or 0:.0f} answers/s"
        text += "" if sample.p99_s is None else f"  p99 {sample.p99_s:.2f} s"
        text += f"  failed {sample.failed}"
    return text


def event_line(event: FleetEvent) -> str:
    """Return an event in one line."""
    return f"{event.at_s:6.1f} s  {event.kind}: {event.subject}: {event.message}"


class FleetView:
    """Plain lines: events as they happen, and the state every five seconds."""

    period_s = 5.0

    def __init__(self) -> None:
        self._next = 0.0

    def event(self, event: FleetEvent) -> None:
        """Show an event."""
        print(event_line(event), flush=True)

    def refresh(self, fleet: Fleet) -> None:
        """Show the state, if it is time to."""
        if monotonic() >= self._next and fleet.journal.samples:
            self._next = monotonic() + self.period_s
            self.draw(fleet)

    def draw(self, fleet: Fleet) -> None:
        """Show the state now."""
        print(status_line(fleet.journal.samples[-1], fleet.autoscaler.targets_text), flush=True)

    def close(self) -> None:
        """Restore the terminal."""


class LiveFleetView(FleetView):
    """A screen with the pods, the autoscaler and the last events. rich is imported when it is first drawn."""

    period_s = 0.5

    def __init__(self) -> None:
        super().__init__()
        self._events: list[FleetEvent] = []
        self._live: Live | None = None

    def event(self, event: FleetEvent) -> None:
        self._events = [*self._events, event][-_MAX_EVENTS:]

    def draw(self, fleet: Fleet) -> None:
        if self._live is None:
            from rich.live import Live

            self._live = Live(auto_refresh=False, transient=True, vertical_overflow="crop")
            self._live.start()
        self._live.update(_screen(fleet, self._events), refresh=True)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def _screen(fleet: Fleet, events: list[FleetEvent]) -> "RenderableType":
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    pods = Table("pod", "state", "ready", "pid", box=None, pad_edge=False)
    for replica in fleet.replica_set.replicas:
        pods.add_row(replica.name, replica.state.value, "yes" if replica.ready else "no", str(replica.pid))
    status = status_line(fleet.journal.samples[-1], fleet.autoscaler.targets_text)
    lines = [Text(event_line(event), "dim", no_wrap=True, overflow="ellipsis") for event in events]
    return Group(Text(status, "bold"), pods, *lines, Text("Ctrl-C ends the fleet", "dim"))


def fleet_view() -> FleetView:
    """Return the view that suits stdout."""
    return LiveFleetView() if sys.stdout.isatty() else FleetView()
