"""Runs as one HTML page with plots in SVG: no script, no network."""

from collections.abc import Sequence
from html import escape

from conch.operate.scaling.commands.table import by_minute
from conch.operate.scaling.simulation.engine import SimulationRun
from conch.operate.scaling.simulation.judgement import clock, remarks

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 1100, 200, 60, 24, 12
_TICKS = 4
_STYLE = """
:root { color-scheme: light dark; --ink: #16202a; --paper: #fff; --line: #d9e0e6; --soft: #5a6773;
  --load: #75808a; --ready: #0072b2; --wanted: #c28a00; --miss: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6ebef; --paper: #12181e; --line: #2f3943; --soft: #9aa7b3;
  --load: #8d99a5; --ready: #56b4e9; --wanted: #e6b43c; --miss: #ff8a80; } }
body { margin: 0 auto; max-width: 1140px; padding: 20px; font: 15px/1.5 system-ui, sans-serif;
  color: var(--ink); background: var(--paper); }
svg { width: 100%; height: auto; } text { fill: var(--soft); font-size: 12px; }
path { fill: none; stroke-width: 1.5; } .grid { stroke: var(--line); stroke-width: 1; }
.load { stroke: var(--load); } .ready { stroke: var(--ready); }
.wanted { stroke: var(--wanted); stroke-dasharray: 4 3; }
.miss { fill: var(--miss); opacity: .55; stroke: none; } table { border-collapse: collapse; }
th, td { text-align: right; padding: 3px 14px 3px 0; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; } .key { color: var(--soft); }
"""


def page(runs: Sequence[SimulationRun], winner: str) -> str:
    """Return the page."""
    scenario = runs[0].scenario
    rows = "".join(
        f"<tr><td>{escape(each.name)}{' ★' if each.name == winner else ''}</td><td>{100 * each.miss_share:.2f} %</td>"
        f"<td>{each.replica_hours:,.1f}</td><td>{each.cost:,.1f}</td><td>{each.ready.min()}–{each.ready.max()}</td>"
        f"<td>{len(each.events)}</td></tr>"
        for each in runs
    )
    highest = max(int(max(each.wanted.max(), each.ready.max())) for each in runs)
    sections = "".join(_section(each, highest) for each in runs)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Autoscaling</title>'
        '<meta name="viewport" content="width=device-width"><meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<style>{_STYLE}</style></head><body><h1>Autoscaling, simulated</h1><p>{escape(scenario.traffic.name)}; "
        f"objective {100 * scenario.objective:g} % within {scenario.slo_s:g} s; cold start "
        f"{scenario.cold_start.total_s} s</p><table><tr><th>policy</th><th>missed</th><th>replica-hours</th>"
        f"<th>% × hours</th><th>replicas</th><th>changes</th></tr>{rows}</table>{sections}</body></html>\n"
    )


def _section(run: SimulationRun, highest: int) -> str:
    rates = by_minute(run.scenario.traffic.rates)
    misses = by_minute(run.misses / run.scenario.traffic.rates.clip(1e-9))
    peak = max(*rates, 1e-9)
    lines = "".join(
        f'<path class="{kind}" d="{_path(values, limit)}"/>'
        for kind, values, limit in (
            ("load", rates, peak),
            ("wanted", by_minute(run.wanted), float(highest)),
            ("ready", by_minute(run.ready), float(highest)),
        )
    )
    notes = "".join(f"<li>{escape(each)}</li>" for each in remarks(run))
    return (
        f"<h2>{escape(run.name)}</h2><p class='key'>blue: ready replicas; dashed: wanted; grey: load, up to "
        f"{peak:,.0f}/s; red: share of requests that missed</p>"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{_axes(run, highest)}'
        f'<path class="miss" d="{_area(misses)}"/>{lines}</svg><ul>{notes}</ul>'
    )


def _x(index: float, count: int) -> float:
    return _LEFT + (_WIDTH - _LEFT - 10) * index / max(count - 1, 1)


def _y(share: float) -> float:
    return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - min(share, 1.0))


def _path(values: Sequence[float], limit: float) -> str:
    points = (f"{_x(index, len(values)):.1f} {_y(each / limit):.1f}" for index, each in enumerate(values))
    return "M" + "L".join(points)


def _area(shares: Sequence[float]) -> str:
    return f"{_path(shares, 1.0)}L{_x(len(shares) - 1, len(shares)):.1f} {_y(0):.1f}L{_LEFT} {_y(0):.1f}Z"


def _axes(run: SimulationRun, highest: int) -> str:
    duration = run.scenario.traffic.duration_s
    parts = []
    for tick in range(_TICKS + 1):
        y = _y(tick / _TICKS)
        parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{_WIDTH - 10}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{highest * tick / _TICKS:g}</text>')
    for tick in range(7):
        x = _x(tick, 7)
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - 6}" text-anchor="middle">{clock(duration * tick / 6)}</text>')
    return "".join(parts)
