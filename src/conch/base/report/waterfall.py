"""Waterfalls of requests: rows of phases over one axis of time, in the terminal and as a chart of a page."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup
from rich.console import Console
from rich.text import Text

from conch.base.control_characters import printable
from conch.base.report.axis import Axis
from conch.base.report.chart import ChartRow, RowSpan, draw_rows

_MIN_BAR, _MAX_BAR = 20, 120  # columns


class Segment(NamedTuple):
    """A phase of a row; times are nanoseconds."""

    phase: str
    start: int
    end: int

    @property
    def ns(self) -> int:
        """The duration."""
        return self.end - self.start


class PhaseMark(NamedTuple):
    """How a phase looks: a character and one for ASCII, a color of the terminal, the number of a color of charts."""

    character: str
    letter: str
    style: str
    color: int


class WaterfallRow(NamedTuple):
    """A line of bars from `start` to `end` (ns, of any clock), below its parent; `error` is shown below it."""

    name: str
    depth: int
    start: int
    end: int
    segments: Sequence[Segment]
    error: str = ""


def duration(ns: float) -> str:
    """Return a time with a unit and three digits."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns:.0f} ns"


def print_rows(rows: Sequence[WaterfallRow], marks: Mapping[str, PhaseMark], console: Console) -> None:
    """Print rows, of which the first is the whole, and a legend of the phases that they show."""
    ascii_only = not (console.encoding or "").lower().startswith("utf")
    names = ["  " * row.depth + printable(row.name) for row in rows]
    width = min(max(map(len, names)), max(console.width // 3, 10))
    columns = min(console.width - width - 24, _MAX_BAR)
    if below := columns < _MIN_BAR:  # the bars have lines to themselves
        columns = min(console.width, _MAX_BAR)
    start, whole = rows[0].start, max(rows[0].end - rows[0].start, 1)
    used = set[str]()
    for name, row in zip(names, rows, strict=True):
        times = f"{duration(row.start - start):>9} {duration(row.end - row.start):>9}"
        line = Text(f"{name[:width]:<{width}} {times}").append("\n" if below else "  ")
        for phase in _columns(row, start, whole / columns, columns):
            if phase is None:
                line.append(" ")
            else:
                used.add(phase)
                line.append(marks[phase].letter if ascii_only else marks[phase].character, marks[phase].style)
        line.rstrip()
        console.print(line, soft_wrap=True)
        if row.error:
            console.print(Text(f"{'':<{width}} failed: {printable(row.error)}", "red"), soft_wrap=True)
    legend = Text("" if below else " " * (width + 1))
    for phase, mark in marks.items():
        if phase in used:
            legend.append(mark.letter if ascii_only else mark.character, mark.style).append(f" {phase}  ")
    legend.rstrip()
    console.print(legend, soft_wrap=not below)


def draw_waterfall(rows: Sequence[WaterfallRow], marks: Mapping[str, PhaseMark]) -> Markup:
    """Return rows, of which the first is the whole, as a figure."""
    start = rows[0].start
    drawn = [
        ChartRow(
            row.name,
            [
                RowSpan(segment.start - start, segment.end - start, marks[segment.phase].color,
                     f"{row.name}: {segment.phase} {duration(segment.ns)}, begins at {duration(segment.start - start)}")
                for segment in row.segments
            ],
            row.depth,
        )
        for row in rows
    ]  # fmt: skip
    used = {segment.phase for row in rows for segment in row.segments}
    legend = [(phase, mark.color) for phase, mark in marks.items() if phase in used]
    include = (0, rows[0].end - start)
    axis = Axis("time since the first byte", lambda ns: duration(round(ns)), tight=True, include=include)
    return draw_rows("Waterfall", axis, drawn, legend=legend)


def _columns(row: WaterfallRow, origin: int, scale: float, columns: int) -> list[str | None]:
    """Return the phase that takes most of each column, which is `scale` ns wide."""
    cells = list[tuple[int, str] | None]([None] * columns)
    for segment in row.segments:
        first = min(max(int((segment.start - origin) / scale), 0), columns - 1)
        last = min(max(int((segment.end - origin - 1) / scale), first), columns - 1)
        for column in range(first, last + 1):
            begin = origin + column * scale
            share = int(min(segment.end, begin + scale) - max(segment.start, begin))
            if (held := cells[column]) is None or share > held[0]:
                cells[column] = (share, segment.phase)
    return [cell and cell[1] for cell in cells]
