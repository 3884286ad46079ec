"""The live screen in a terminal."""

from time import monotonic
from typing import TYPE_CHECKING

from conch.base.durations import duration_text
from conch.measure.bench.measure_level import Progress
from conch.measure.bench.measurement import Measurement
from conch.measure.bench.run_view import RunView, Snapshot, level_name, measurement_line, take_snapshot

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

_INTERVAL_S = 0.25
_SPARKS = "▁▂▃▄▅▆▇█"
_MAX_DONE = 6
_NARROW = 60  # columns below which each value has a separate line


class LiveView(RunView):
    """Draws the screen four times a second. rich is imported when the first level runs."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._live: Live | None = None
        self._console: Console | None = None
        self._next = 0.0
        self._rates: list[float] = []
        self._done: list[Measurement] = []

    def progress(self, progress: Progress) -> None:
        now = monotonic()
        if now < self._next:
            return
        self._next = now + _INTERVAL_S
        snapshot = take_snapshot(progress)
        self._rates.append(snapshot.rate)
        live, console = self._screen()
        live.update(screen(self._title, snapshot, self._rates, self._done, console.width), refresh=True)

    def measured(self, measurement: Measurement) -> None:
        self._done.append(measurement)
        self._rates.clear()
        self._next = 0.0

    def end(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _screen(self) -> "tuple[Live, Console]":
        if self._live is None or self._console is None:
            from rich.console import Console
            from rich.live import Live

            self._console = Console(stderr=True)
            self._live = Live(
                console=self._console,
                auto_refresh=False,
                transient=True,
                vertical_overflow="crop",
                redirect_stdout=False,
            )
            self._live.start()
        return self._live, self._console


def screen(
    title: str, snapshot: Snapshot, rates: list[float], done: list[Measurement], columns: int
) -> "RenderableType":
    """Return the screen of a moment. It fits 40 columns."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(title, "bold", overflow="ellipsis", no_wrap=True)]
    parts += [
        Text(measurement_line(measurement), "dim", overflow="ellipsis", no_wrap=True)
        for measurement in done[-_MAX_DONE:]
    ]
    parts.append(_heading(snapshot))
    parts.append(_progress_bar(snapshot, columns))
    fields = _fields(snapshot)
    if columns < _NARROW:
        parts += [Text(f"{name:<12}{value}", overflow="ellipsis", no_wrap=True) for name, value in fields]
    else:
        parts.append(_grid(fields, columns))
    parts.append(Text(f"req/s {sparkline(rates, columns - 6)}", "cyan", no_wrap=True))
    parts += _bars(snapshot, columns)
    if snapshot.error_rate:
        parts.append(Text(f"{snapshot.error_rate:,.0f} errors/s: {snapshot.last_error}", "red", overflow="ellipsis"))
    parts.append(Text("Ctrl-C ends the run with a report", "dim"))
    return Group(*parts)


def sparkline(values: list[float], columns: int) -> str:
    """Return the last values as blocks from 0 to the highest."""
    shown = values[-max(columns, 1) :]
    top = max(shown, default=0.0) or 1.0
    return "".join(_SPARKS[min(int(value / top * len(_SPARKS)), len(_SPARKS) - 1)] for value in shown)


def _heading(snapshot: Snapshot) -> "RenderableType":
    from rich.text import Text

    style = "yellow" if snapshot.phase == "warm-up" else "green"
    name = level_name(snapshot.kind, snapshot.label)
    return Text.assemble((f"{name}  ", "bold"), (snapshot.phase, style), no_wrap=True, overflow="ellipsis")


def _progress_bar(snapshot: Snapshot, columns: int) -> "RenderableType":
    from rich.text import Text

    text = f" {snapshot.elapsed_s:.0f} s, at most {snapshot.left_s:.0f} s left"
    width = max(columns - len(text) - 1, 5)
    filled = round(snapshot.share * width)
    return Text.assemble(("━" * filled, "green"), ("━" * (width - filled), "dim"), text, no_wrap=True)


def _fields(snapshot: Snapshot) -> list[tuple[str, str]]:
    """Return names and values, in the order of their importance."""
    fields = [("requests/s", f"{snapshot.rate:,.0f}"), ("errors/s", f"{snapshot.error_rate:,.0f}")]
    if snapshot.streamed_rate is not None:
        fields.append((f"{snapshot.streamed}/s", f"{snapshot.streamed_rate:,.0f}"))
    times = (
        ("TTFT p50" if snapshot.streamed == "tokens" else "TTFR p50", snapshot.first_p50),
        ("p50", snapshot.p50),
        ("p90", snapshot.p90),
        ("p99", snapshot.p99),
        ("max", snapshot.max),
    )
    fields += [(name, duration_text(value)) for name, value in times if value is not None]
    fields += [("in flight", f"{snapshot.in_flight:,}"), ("requests", f"{snapshot.requests:,}")]
    return fields + [(name, _gauge(name, value)) for name, value in snapshot.gauges.items()]


def _gauge(name: str, value: float) -> str:
    if name == "GPU":
        return f"{value:.0%}"
    if name == "GPU power":
        return f"{value:.0f} W"
    return f"{value:.2f} cores" if name == "server CPU" else f"{value:,.0f}"


def _grid(fields: list[tuple[str, str]], columns: int) -> "RenderableType":
    from rich.table import Table

    across = max(columns // 26, 1)
    table = Table.grid(padding=(0, 3))
    for start in range(0, len(fields), across):
        table.add_row(*(f"[dim]{name}[/] {value}" for name, value in fields[start : start + across]))
    return table


def _bars(snapshot: Snapshot, columns: int) -> "list[RenderableType]":
    """Return the histogram of latency, a line per bucket."""
    from rich.text import Text

    top = max((count for _, count in snapshot.histogram), default=0)
    width = max(columns - 22, 5)
    return [
        Text(f"{'≤ ' + duration_text(edge):>11} {'█' * round(count / top * width)} {count:,}", no_wrap=True)
        for edge, count in snapshot.histogram
        if top
    ]
