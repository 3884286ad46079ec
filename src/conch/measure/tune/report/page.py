"""The report as one HTML file without network access: plot, tables, differences."""

from collections.abc import Iterable, Sequence
from html import escape
from math import floor, log10

from conch.measure.tune.effects import best_compromises, measured_configurations
from conch.measure.tune.knobs import LOAD
from conch.measure.tune.objective import METRICS
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
from conch.measure.tune.state.trial_log import Trial

_WIDTH, _HEIGHT = 720, 380
_LEFT, _TOP, _RIGHT, _BOTTOM = 70, 20, 20, 50
_STYLE = """
body{font:15px/1.45 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#1c2530;background:#fff}
table{border-collapse:collapse;margin:.5rem 0 1.5rem}th,td{padding:.25rem .7rem;border-bottom:1px solid #d8dee6;
text-align:right}th:first-child,td:first-child{text-align:left}tr.winner td{font-weight:600;background:#e9f6ee}
.scroll{overflow-x:auto}pre{background:#f4f6f9;padding:.8rem;overflow:auto}.add{color:#11713c}.del{color:#b3261e}svg{max-width:100%}
.grid{stroke:#e3e8ee}.axis{fill:#5a6775;font-size:12px}.dot{fill:#8fa3b8;fill-opacity:.75}.front{fill:#1f6feb}
.current{fill:#d9822b}.line{stroke:#1f6feb;fill:none;stroke-width:1.5}
@media(prefers-color-scheme:dark){body{background:#14181d;color:#dde4ec}th,td{border-color:#333c46}pre{background:#1d232a}
tr.winner td{background:#173323}.grid{stroke:#2a323b}.axis{fill:#9aa7b5}.add{color:#6bd391}.del{color:#ff8a80}}
"""


def page(outcome: TuneOutcome) -> str:
    """Return the report."""
    title = f"Tuning of {outcome.model}"
    facts = f"{outcome.server} at {outcome.url}; {outcome.goal}; {outcome.started_at}, {outcome.duration_s:.0f} s; "
    facts += f"search: {outcome.strategy}, {len(outcome.trials)} trials, grid of {outcome.space_size}"
    parts = [
        f"<h1>{escape(title)}</h1><p>{escape(facts)}</p><p><strong>{escape(verdict(outcome))}</strong></p>",
        "<h2>Throughput and latency</h2>",
        scatter(outcome),
    ]
    if outcome.stages:
        rows = [
            (s.model, _ms(s.queue_s), _ms(s.compute_s), f"{s.busy_instances:.1f} of {s.instances}",
             "bottleneck" if s.model == outcome.bottleneck else "")
            for s in outcome.stages
        ]  # fmt: skip
        parts.append("<h2>Stages</h2>" + _table(("stage", "queue", "compute", "busy instances", ""), rows))
    if outcome.finalists:
        parts.append("<h2>Finalists</h2>" + _finalists(outcome))
    if outcome.effects:
        parts.append("<h2>Effect of each knob, other knobs equal</h2>" + _effects(outcome))
    diffs = ("".join(map(_diff_line, diff.splitlines())) for diff in outcome.diffs.values())
    parts.extend(f"<h2>config.pbtxt</h2><pre>{diff}</pre>" for diff in diffs)
    parts.append("<h2>Trials</h2>" + _trials(outcome.trials))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>{"".join(parts)}</html>\n'
    )


def scatter(outcome: TuneOutcome) -> str:
    """Return an SVG with a dot for each configuration and load, and the front of the best compromises."""
    known = measured_configurations(outcome.trials, outcome.current)
    if not known:
        return "<p>No trial succeeded.</p>"
    front = best_compromises(outcome.trials, outcome.current)
    highest = max(trial.figures["throughput"] for trial in known) * 1.05
    slowest = max(trial.figures["p99"] for trial in known) * 1e3 * 1.05

    def place(trial: Trial) -> tuple[float, float]:
        x = _LEFT + trial.figures["throughput"] / highest * (_WIDTH - _LEFT - _RIGHT)
        y = _HEIGHT - _BOTTOM - trial.figures["p99"] * 1e3 / slowest * (_HEIGHT - _TOP - _BOTTOM)
        return x, y

    marks = []
    for value in _ticks(highest):
        x = _LEFT + value / highest * (_WIDTH - _LEFT - _RIGHT)
        marks.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>')
        marks.append(
            f'<text class="axis" x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{value:g}</text>'
        )
    for value in _ticks(slowest):
        y = _HEIGHT - _BOTTOM - value / slowest * (_HEIGHT - _TOP - _BOTTOM)
        marks.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        marks.append(f'<text class="axis" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    marks.append(f'<text class="axis" x="{middle}" y="{_HEIGHT - 10}" text-anchor="middle">requests per second</text>')
    marks.append(f'<text class="axis" x="{_LEFT - 8}" y="{_TOP - 6}" text-anchor="end">p99, ms</text>')
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(place, front))
    marks.append(f'<polyline class="line" points="{line}"/>')
    for trial in known:
        x, y = place(trial)
        own = {name: value for name, value in trial.settings.items() if name != LOAD}
        is_current = all(name in outcome.current and outcome.current[name] == value for name, value in own.items())
        kind = "current" if is_current else "front" if trial in front else "dot"
        text = f"{settings_text(trial.settings, outcome.current)}, load {value_text(trial.settings.get(LOAD))}: "
        text += f"{trial.figures['throughput']:.1f}/s, p99 {_ms(trial.figures['p99'])}"
        marks.append(f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="5"><title>{escape(text)}</title></circle>')
    legend = "line and blue: best compromises; orange: the current configuration; one dot for each configuration and "
    legend += "load, the median of its measurements"
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{"".join(marks)}</svg><p>{legend}</p>'


def _finalists(outcome: TuneOutcome) -> str:
    columns = metric_columns(outcome)
    gains = {gain.name: gain_text(gain) for gain in outcome.gains}
    rows = []
    for each in outcome.finalists:
        figures = [figure_text(name, each.figures.get(name)) for name in columns]
        label = each.name if each.name == "current" else f"{each.name}: {settings_text(each.settings, outcome.current)}"
        met = "met" if each.feasible else "not met"
        rows.append((label, value_text(each.settings.get(LOAD)), *figures, gains.get(each.name, ""), met))
    names = [each.name for each in outcome.finalists]
    marked = names.index(outcome.winner) if outcome.winner in names else None
    return _table(("configuration", "load", *columns, "gain", "constraints"), rows, marked)


def _effects(outcome: TuneOutcome) -> str:
    names = list(dict.fromkeys(name for each in outcome.effects for name in each.ratios))
    rows = [
        (f"{each.knob}={value_text(each.value)}", str(each.trials), *(effect_texts(each).get(n, "") for n in names))
        for each in outcome.effects
    ]
    return _table(("knob", "trials", *names), rows)


def _trials(trials: Sequence[Trial]) -> str:
    rows = [
        (settings_text(t.settings), value_text(t.settings.get(LOAD)), f"{t.effort:g}", t.purpose,
         figure_text("throughput", t.figures.get("throughput")), figure_text("p99", t.figures.get("p99")), t.failure)
        for t in trials
    ]  # fmt: skip
    return _table(("configuration", "load", "effort", "purpose", "throughput", "p99", "failure"), rows)


def _table(head: Iterable[str], rows: Sequence[Sequence[str]], marked: int | None = None) -> str:
    heads = "".join(f"<th>{escape(each)}</th>" for each in head)
    lines = []
    for number, row in enumerate(rows):
        cells = "".join(f"<td>{escape(each)}</td>" for each in row)
        lines.append(f"<tr class=winner>{cells}</tr>" if number == marked else f"<tr>{cells}</tr>")
    return f"<div class=scroll><table><tr>{heads}</tr>{''.join(lines)}</table></div>"


def _diff_line(line: str) -> str:
    kind = {"+": "add", "-": "del"}.get(line[:1], "")
    return f'<span class="{kind}">{escape(line)}</span>\n'


def _ms(seconds: float) -> str:
    return f"{seconds / METRICS['p99'].unit:.1f} ms"


def _ticks(limit: float) -> list[float]:
    """Return about five round values from 0 to a limit."""
    step = 10 ** floor(log10(limit / 4))
    step = next(step * factor for factor in (1, 2, 5, 10) if limit / (step * factor) <= 6)
    return [step * number for number in range(int(limit / step) + 1)]
