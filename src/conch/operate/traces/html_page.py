"""A request as one HTML page: a waterfall, and its times as a table."""

from markupsafe import Markup

from conch.base.report.axis import Axis
from conch.base.report.chart import ChartRow, RowSpan, draw_rows
from conch.base.report.page import page, table, tag, verdict
from conch.operate.traces.spans import Phase, RecordedSpan, duration, reason

# Phase → number of its color.
_COLORS: dict[Phase, int] = {
    "receive": 6,
    "queue": 1,
    "input": 0,
    "infer": 2,
    "output": 3,
    "send": 6,
    "steps": 4,
    "other": 7,
}


def html_page(root: RecordedSpan) -> str:
    """Return the page of one request."""
    title = f"Request {root.request_id or root.id}: {root.model}"
    ids = f"id {root.id}" + (f", trace {root.trace_id}" if root.trace_id else "")
    errors = [f"{_name(span)} failed: {span.error}" for _, span in root.walk() if span.error]
    return page(
        title,
        tag("p", ids, class_="lead"),
        verdict([reason(root), *errors], "invalid" if errors else ""),
        _waterfall(root),
        _table(root),
        kind="Trace",
    )


def _waterfall(root: RecordedSpan) -> Markup:
    rows = [
        ChartRow(
            _name(span),
            [
                RowSpan(segment.start - root.start, segment.end - root.start, _COLORS[segment.phase],
                     f"{_name(span)}: {segment.phase} {duration(segment.ns)}, "
                     f"begins at {duration(segment.start - root.start)}")
                for segment in span.segments()
            ],
            depth,
        )
        for depth, span in root.walk()
    ]  # fmt: skip
    used = {segment.phase for _, span in root.walk() for segment in span.segments()}
    legend = [(phase, color) for phase, color in _COLORS.items() if phase in used]
    axis = Axis("time since the first byte", lambda ns: duration(round(ns)), tight=True, include=(0, root.ns))
    return draw_rows("Waterfall", axis, rows, legend=legend)


def _table(root: RecordedSpan) -> Markup:
    rows = []
    for depth, span in root.walk():
        times = dict.fromkeys(_COLORS, 0)
        for segment in span.segments():
            times[segment.phase] += segment.ns
        name = Markup("&nbsp;" * (3 * depth)) + _name(span)  # noqa: S704 a number of spaces
        cells = (duration(ns) if ns else "" for ns in times.values())
        rows.append((name, duration(span.start - root.start), duration(span.ns), *cells))
    return table(("model", "start", "time", *_COLORS), rows, "Times")


def _name(span: RecordedSpan) -> str:
    return f"{span.model or span.id}" + (f" version {span.version}" if span.version else "")
