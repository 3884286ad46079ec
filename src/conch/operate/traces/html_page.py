"""A request as one HTML page: a waterfall, and its times as a table."""

from markupsafe import Markup

from conch.base.report.page import page, table, tag, verdict
from conch.base.report.waterfall import draw_waterfall, duration
from conch.operate.traces.spans import MARKS, RecordedSpan, reason, rows


def html_page(root: RecordedSpan) -> str:
    """Return the page of one request."""
    title = f"Request {root.request_id or root.id}: {root.model}"
    ids = f"id {root.id}" + (f", trace {root.trace_id}" if root.trace_id else "")
    errors = [f"{_name(span)} failed: {span.error}" for _, span in root.walk() if span.error]
    return page(
        title,
        tag("p", ids, class_="lead"),
        verdict([reason(root), *errors], "invalid" if errors else ""),
        draw_waterfall([row._replace(name=_name(span)) for row, (_, span) in zip(rows(root), root.walk(), strict=True)],
                       MARKS),
        _table(root),
        kind="Trace",
    )  # fmt: skip


def _table(root: RecordedSpan) -> Markup:
    cells = []
    for depth, span in root.walk():
        times = dict.fromkeys(MARKS, 0)
        for segment in span.segments():
            times[segment.phase] += segment.ns
        name = Markup("&nbsp;" * (3 * depth)) + _name(span)  # noqa: S704 a number of spaces
        shown = (duration(ns) if ns else "" for ns in times.values())
        cells.append((name, duration(span.start - root.start), duration(span.ns), *shown))
    return table(("model", "start", "time", *MARKS), cells, "Times")


def _name(span: RecordedSpan) -> str:
    return f"{span.model or span.id}" + (f" version {span.version}" if span.version else "")
