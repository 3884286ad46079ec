"""Waterfalls in the terminal, and as one HTML page."""

from markupsafe import Markup
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from conch.base.control_characters import printable
from conch.base.report.page import page, table, tag, verdict
from conch.base.report.waterfall import draw_waterfall, duration, print_rows
from conch.operate.traces.read import RecordedTraces
from conch.operate.traces.spans import MARKS, RecordedSpan, reason, rows

_MAX_LISTED = 10


def print_list(traces: RecordedTraces, console: Console) -> None:
    """Print the slowest requests."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("id", "request id", "model"):
        table.add_column(name, overflow="fold")
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("reason", overflow="fold")
    for root in traces.requests[:_MAX_LISTED]:
        why = reason(root).partition(": ")[2].partition(";")[0]
        texts = (root.trace_id or root.id, root.request_id, root.model, duration(root.ns), why)
        table.add_row(*(escape(printable(text)) for text in texts))
    console.print(table)
    if (more := len(traces.requests) - _MAX_LISTED) > 0:
        console.print(f"and {more} faster ones")


def print_waterfall(root: RecordedSpan, console: Console) -> None:
    """Print one request."""
    title = f"request {root.request_id or root.id}" + (f", trace {root.trace_id}" if root.trace_id else "")
    console.print(Text(printable(title), "bold"), soft_wrap=not console.is_terminal)
    print_rows(rows(root), MARKS, console)
    console.print(Text(printable(reason(root))), soft_wrap=not console.is_terminal)


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
