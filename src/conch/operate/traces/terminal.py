"""Waterfalls in the terminal."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from conch.operate.traces.read import RecordedTraces
from conch.operate.traces.spans import Phase, RecordedSpan, duration, reason

_MAX_LISTED = 10
_MIN_BAR, _MAX_BAR = 20, 120  # columns
# Phase → character, character in ASCII, color.
_MARKS: dict[Phase, tuple[str, str, str]] = {
    "receive": ("▸", ">", "cyan"),
    "queue": ("░", ".", "yellow"),
    "input": ("▒", "i", "blue"),
    "infer": ("█", "#", "green"),
    "output": ("▓", "o", "magenta"),
    "send": ("◂", "<", "cyan"),
    "steps": ("─", "-", "white"),
    "other": ("·", "_", "bright_black"),
}


def print_list(traces: RecordedTraces, console: Console) -> None:
    """Print the slowest requests."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("id", "request id", "model"):
        table.add_column(name, overflow="fold")
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("reason", overflow="fold")
    for root in traces.requests[:_MAX_LISTED]:
        why = reason(root).partition(": ")[2].partition(";")[0]
        table.add_row(*map(plain, (root.trace_id or root.id, root.request_id, root.model, duration(root.ns), why)))
    console.print(table)
    if (more := len(traces.requests) - _MAX_LISTED) > 0:
        console.print(f"and {more} faster ones")


def print_waterfall(root: RecordedSpan, console: Console) -> None:
    """Print one request."""
    ascii_only = not (console.encoding or "").lower().startswith("utf")
    rows = list(root.walk())
    names = [f"{'  ' * depth}{span.model}" + (f":{span.version}" if span.version else "") for depth, span in rows]
    width = min(max(map(len, names)), max(console.width // 3, 10))
    bar = min(max(console.width - width - 24, _MIN_BAR), _MAX_BAR)
    title = f"request {root.request_id or root.id}" + (f", trace {root.trace_id}" if root.trace_id else "")
    console.print(Text(printable(title), "bold"), soft_wrap=True)
    used = set[Phase]()
    for name, (_, span) in zip(names, rows, strict=True):
        line = Text(
            f"{printable(name)[:width]:<{width}} {duration(span.start - root.start):>9} {duration(span.ns):>9}  "
        )
        line.append_text(_bar(root, span, bar, ascii_only, used))
        line.rstrip()
        console.print(line, soft_wrap=True)
        if span.error:
            console.print(Text(f"{'':<{width}} failed: {printable(span.error)}", "red"), soft_wrap=True)
    legend = Text(" " * (width + 1))
    for phase in (phase for phase in _MARKS if phase in used):
        mark, letter, color = _MARKS[phase]
        legend.append(letter if ascii_only else mark, color).append(f" {phase}  ")
    legend.rstrip()
    console.print(legend, soft_wrap=True)
    console.print(Text(printable(reason(root))), soft_wrap=True)


def _bar(root: RecordedSpan, span: RecordedSpan, width: int, ascii_only: bool, used: set[Phase]) -> Text:
    """Return the bar of a span; each column shows the phase that takes most of it. Adds these phases to `used`."""
    scale = max(root.ns, 1) / width
    cells = list[tuple[int, Phase] | None]([None] * width)
    for segment in span.segments():
        first = min(max(int((segment.start - root.start) / scale), 0), width - 1)
        last = min(max(int((segment.end - root.start - 1) / scale), first), width - 1)
        for column in range(first, last + 1):
            begin = root.start + column * scale
            share = int(min(segment.end, begin + scale) - max(segment.start, begin))
            if (held := cells[column]) is None or share > held[0]:
                cells[column] = (share, segment.phase)
    text = Text()
    for cell in cells:
        if cell is None:
            text.append(" ")
        else:
            used.add(cell[1])
            mark, letter, color = _MARKS[cell[1]]
            text.append(letter if ascii_only else mark, color)
    return text


def printable(text: str) -> str:
    """Return a text without control characters: names come from files."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def plain(text: str) -> str:
    """Return a printable text without markup."""
    return escape(printable(text))
