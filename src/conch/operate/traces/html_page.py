"""A waterfall as one HTML file: SVG, without scripts and other files, light and dark."""

from html import escape

from conch.operate.traces.spans import Phase, RecordedSpan, duration, reason

_WIDTH, _NAMES, _ROW, _BAR = 1000, 260, 26, 16  # pixels
_AXIS = 5  # intervals
_MAX_NAME = 34  # characters
_MIN_PIXELS = 0.5
# Phase → color in light and dark mode.
_COLORS: dict[Phase, tuple[str, str]] = {
    "receive": ("#0e7490", "#22d3ee"),
    "queue": ("#d97706", "#fbbf24"),
    "input": ("#2563eb", "#60a5fa"),
    "infer": ("#15803d", "#4ade80"),
    "output": ("#9333ea", "#c084fc"),
    "send": ("#0e7490", "#22d3ee"),
    "steps": ("#9ca3af", "#6b7280"),
    "other": ("#d1d5db", "#4b5563"),
}
_STYLE = """
:root { color-scheme: light dark; --text: #1f2937; --back: #ffffff; --line: #e5e7eb; }
@media (prefers-color-scheme: dark) { :root { --text: #e5e7eb; --back: #111827; --line: #374151; } }
body { font: 14px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); margin: 2rem auto;
  max-width: 1040px; padding: 0 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.2rem; } svg { width: 100%; height: auto; } svg text { fill: var(--text); font-size: 12px; }
svg line { stroke: var(--line); } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 0.2rem 0.6rem; border-bottom: 1px solid var(--line); }
.n { text-align: right; white-space: nowrap; } .key { display: inline-block; width: 0.8rem; height: 0.8rem;
  margin: 0 0.3rem 0 0.8rem; } .why { font-weight: 600; } .failed { color: #dc2626; }
"""


def html_page(root: RecordedSpan) -> str:
    """Return the page of one request."""
    title = f"Request {root.request_id or root.id}: {root.model}"
    ids = f"id {root.id}" + (f", trace {root.trace_id}" if root.trace_id else "")
    used = {each.phase for _, span in root.walk() for each in span.segments()}
    keys = "".join(f'<span class="key {phase}"></span>{phase}' for phase in _COLORS if phase in used)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{escape(title)}</title>
<style>{_STYLE}{_colors()}</style>
</head>
<body>
<h1>{escape(title)}</h1>
<p>{escape(ids)}</p>
<p class="why">{escape(reason(root))}</p>
{_waterfall(root)}
<p>{keys}</p>
{_table(root)}
</body>
</html>
"""


def _colors() -> str:
    light = "".join(f".{phase} {{ fill: {a}; background: {a}; }}\n" for phase, (a, _) in _COLORS.items())
    dark = "".join(f".{phase} {{ fill: {b}; background: {b}; }}\n" for phase, (_, b) in _COLORS.items())
    return f"{light}@media (prefers-color-scheme: dark) {{\n{dark}}}\n"


def _waterfall(root: RecordedSpan) -> str:
    rows = list(root.walk())
    height = _ROW * (len(rows) + 1)
    scale = (_WIDTH - _NAMES) / max(root.ns, 1)
    parts = [f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(reason(root), quote=True)}">']
    for tick in range(_AXIS + 1):
        x = _NAMES + (_WIDTH - _NAMES) * tick / _AXIS
        anchor = "end" if tick == _AXIS else "start"
        parts.append(f'<line x1="{x:.1f}" y1="0" x2="{x:.1f}" y2="{height}"/>')
        label = duration(round(root.ns * tick / _AXIS))
        parts.append(f'<text x="{x + (3 if tick < _AXIS else -3):.1f}" y="14" text-anchor="{anchor}">{label}</text>')
    for row, (depth, span) in enumerate(rows, 1):
        y = row * _ROW
        name = _name(span)
        short = name if len(name) <= _MAX_NAME else name[: _MAX_NAME - 1] + "…"
        indent = min(12 * depth, _NAMES // 2)
        parts.append(f'<text x="{indent}" y="{y + 13}">{escape(short)}<title>{escape(name)}</title></text>')
        for each in span.segments():
            x = _NAMES + (each.start - root.start) * scale
            width = max(each.ns * scale, _MIN_PIXELS)
            tip = f"{name}: {each.phase} {duration(each.ns)}, begins at {duration(each.start - root.start)}"
            parts.append(
                f'<rect class="{each.phase}" x="{x:.2f}" y="{y}" width="{width:.2f}" height="{_BAR}">'
                f"<title>{escape(tip)}</title></rect>"
            )
    return "\n".join([*parts, "</svg>"])


def _table(root: RecordedSpan) -> str:
    head = "".join(f'<th class="n">{phase}</th>' for phase in _COLORS)
    rows = []
    for depth, span in root.walk():
        times = dict.fromkeys(_COLORS, 0)
        for each in span.segments():
            times[each.phase] += each.ns
        cells = "".join(f'<td class="n">{duration(ns) if ns else ""}</td>' for ns in times.values())
        error = f'<br><span class="failed">failed: {escape(span.error)}</span>' if span.error else ""
        name = "&nbsp;" * (3 * depth) + escape(_name(span)) + error
        start = f'<td class="n">{duration(span.start - root.start)}</td>'
        rows.append(f'<tr><td>{name}</td>{start}<td class="n">{duration(span.ns)}</td>{cells}</tr>')
    return (
        f'<table><thead><tr><th>model</th><th class="n">start</th><th class="n">time</th>{head}</tr></thead>\n<tbody>'
        + "\n".join(rows)
        + "</tbody></table>"
    )


def _name(span: RecordedSpan) -> str:
    return f"{span.model or span.id}" + (f" version {span.version}" if span.version else "")
