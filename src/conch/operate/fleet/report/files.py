"""The report as files: JSON, SVG, and a page that contains both. The functions are pure; the caller writes."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from typing import Any

from conch.operate.fleet.report.journal import FleetEvent, FleetSample, Journal
from conch.operate.fleet.report.verdict import FleetVerdict

_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>
body{{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#24292f}}
table{{border-collapse:collapse;width:100%}}td,th{{text-align:left;padding:.2rem .6rem;border-bottom:1px solid #d0d7de}}
td:first-child{{text-align:right;white-space:nowrap}}svg{{width:100%;height:auto}}
</style></head><body>
<h1>{title}</h1>
<p>{note}</p>
<ul>{verdict}</ul>
{svg}
<h2>Events</h2>
<table><thead><tr><th>after</th><th>event</th><th>of</th><th></th></tr></thead><tbody>
{events}
</tbody></table>
<script type="application/json" id="report">{document}</script>
</body></html>
"""


def document(settings: Mapping[str, Any], journal: Journal, verdict: FleetVerdict | None) -> dict[str, Any]:
    """Return the report as values of JSON."""
    found = None
    if verdict is not None:
        found = {**asdict(verdict), "peak": verdict.peak, "scaled": verdict.scaled, "passed": verdict.passed}
    return {
        "format": "conch-fleet-1",
        "settings": dict(settings),
        "verdict": found,
        "events": [asdict(each) for each in journal.events],
        "samples": [_rounded(each) for each in journal.samples],
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


def to_page(title: str, note: str, report: Mapping[str, Any], journal: Journal, lines: Sequence[str], svg: str) -> str:
    """Return a page that needs no network."""
    return _PAGE.format(
        title=escape(title),
        note=escape(note),
        verdict="".join(f"<li>{escape(each)}</li>" for each in lines),
        svg=svg,
        events="\n".join(map(_row, journal.events)),
        document=json.dumps(report).replace("<", "\\u003c"),
    )


def _row(event: FleetEvent) -> str:
    cells = (f"{event.at_s:.1f} s", event.kind, event.subject, event.message)
    return f"<tr>{''.join(f'<td>{escape(each)}</td>' for each in cells)}</tr>"
