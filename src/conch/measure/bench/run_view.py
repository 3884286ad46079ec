"""What is shown of a run in progress: nothing, lines for pipes and files, or a live screen in a terminal."""

import sys
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from conch.base.durations import duration_text
from conch.measure.bench.measure_level import Progress
from conch.measure.bench.measurement import Measurement
from conch.measure.bench.records import Records, RequestOutcome

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live


_RECENT_NS = 2_000_000_000  # rates and percentiles on the screen are of so much time
_BUCKETS = 8
_LINE_INTERVAL_S = 2.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One moment. Times are seconds; percentiles are of the last seconds, None without a success in them."""

    label: str
    kind: str
    phase: str
    elapsed_s: float
    expected_s: float
    rate: float  # successful requests per second
    error_rate: float
    requests: int  # since the start
    in_flight: int
    p50: float | None
    p90: float | None
    p99: float | None
    max: float | None
    streamed: str  # "tokens" (content chunks where the server counts none), or "responses" of tensor models
    streamed_rate: float | None
    first_p50: float | None  # time to the first of them
    histogram: tuple[tuple[float, int], ...]  # (upper edge, count)
    gauges: dict[str, float]
    last_error: str

    @property
    def left_s(self) -> float:
        """The time left, at most."""
        return max(self.expected_s - self.elapsed_s, 0.0)

    @property
    def share(self) -> float:
        """The share of the time that has passed, 0 to 1."""
        return min(self.elapsed_s / self.expected_s, 1.0) if self.expected_s > 0 else 1.0


def take_snapshot(progress: Progress) -> Snapshot:
    """Return the numbers of a moment."""
    recent = progress.log.tail(progress.now_ns - _RECENT_NS)
    seconds = min(progress.now_ns - progress.start_ns, _RECENT_NS) / 1e9 or 1e-9
    good = recent[recent["outcome"] == RequestOutcome.OK]
    cancelled = recent["outcome"] == RequestOutcome.CANCELLED  # as the plan asks: not an error
    latency = (good["done_ns"] - good["intended_ns"]) / 1e9
    p50, p90, p99 = (float(value) for value in np.percentile(latency, (50, 90, 99))) if len(good) else (None,) * 3
    streamed, first = _tokens(good) if progress.has_tokens else _responses(good)
    errors = progress.log.errors
    return Snapshot(
        label=progress.level.label,
        kind=progress.level.kind,
        phase=progress.phase,
        elapsed_s=(progress.now_ns - progress.start_ns) / 1e9,
        expected_s=progress.expected_s,
        rate=len(good) / seconds,
        error_rate=(len(recent) - len(good) - np.count_nonzero(cancelled)) / seconds,
        requests=progress.log.count,
        in_flight=progress.log.in_flight,
        p50=p50,
        p90=p90,
        p99=p99,
        max=float(latency.max()) if len(good) else None,
        streamed="tokens" if progress.has_tokens else "responses",
        streamed_rate=streamed / seconds if streamed else None,
        first_p50=first,
        histogram=_histogram(latency),
        gauges=dict(progress.gauges),
        last_error=max(errors, key=lambda message: errors[message]) if errors else "",
    )


def _tokens(good: Records) -> tuple[int, float | None]:
    """Return output tokens, and the median time to the first, of streamed answers."""
    streamed = good[good["chunks_from"] >= 0]
    if not len(streamed):
        return int(good["output_tokens"].clip(min=0).sum()), None
    counted = np.where(streamed["output_tokens"] >= 0, streamed["output_tokens"], streamed["responses"])
    first = (streamed["first_ns"] - streamed["intended_ns"]) / 1e9
    return int(counted.sum()), float(np.median(first))


def _responses(good: Records) -> tuple[int, float | None]:
    """Return responses, and the median time to the first; 0 and None if each request has one."""
    streamed = good[good["chunks_from"] >= 0]
    if np.all(streamed["responses"] == 1):
        return 0, None
    return int(streamed["responses"].sum()), float(np.median(streamed["first_ns"] - streamed["intended_ns"])) / 1e9


def _histogram(latency: NDArray[np.float64]) -> tuple[tuple[float, int], ...]:
    """Return counts in logarithmic buckets between the lowest and the highest latency."""
    if len(latency) == 0:
        return ()
    low, high = max(float(latency.min()), 1e-6), max(float(latency.max()), 2e-6)
    edges = np.geomspace(low, max(high, low * 1.1), _BUCKETS + 1)
    counts, _ = np.histogram(latency, np.concatenate(([0.0], edges[1:-1], [np.inf])))
    return tuple((float(edge), int(count)) for edge, count in zip(edges[1:], counts, strict=True))


class RunView:
    """Shows a run in progress. Called from the main thread, some times a second. This one shows nothing."""

    def progress(self, progress: Progress) -> None:
        """Show the level that runs."""

    def measured(self, measurement: Measurement) -> None:
        """Show a level that has ended."""

    def end(self) -> None:
        """Restore the terminal."""


class PlainView(RunView):
    """Prints a line every two seconds, to stderr."""

    def __init__(self) -> None:
        self._next = 0.0

    def progress(self, progress: Progress) -> None:
        if monotonic() >= self._next:
            self._next = monotonic() + _LINE_INTERVAL_S
            self._print(snapshot_line(take_snapshot(progress)))

    def measured(self, measurement: Measurement) -> None:
        self._next = 0.0
        self._print(measurement_line(measurement))

    def _print(self, line: str) -> None:
        try:
            print(line, file=sys.stderr, flush=True)
        except OSError:  # the reader of stderr has ended: the result still counts
            self._next = float("inf")


def snapshot_line(snapshot: Snapshot) -> str:
    """Return a moment in one line."""
    parts = [
        f"{level_name(snapshot.kind, snapshot.label)}: {snapshot.phase} {snapshot.elapsed_s:.0f} s",
        f"{snapshot.rate:,.0f} req/s",
    ]
    if snapshot.streamed_rate is not None:
        parts.append(f"{snapshot.streamed_rate:,.0f} {snapshot.streamed.replace('tokens', 'tok')}/s")
    if snapshot.p50 is not None and snapshot.p99 is not None:
        parts.append(f"p50 {duration_text(snapshot.p50)}, p99 {duration_text(snapshot.p99)}")
    if snapshot.error_rate:
        parts.append(f"{snapshot.error_rate:,.0f} errors/s ({snapshot.last_error})")
    return ", ".join(parts)


def measurement_line(measurement: Measurement) -> str:
    """Return the figures of a level in one line."""
    parts = [
        f"{level_name(measurement.level.kind, measurement.level.label)}: measured {measurement.window_s:.1f} s",
        f"{_rate_text(measurement.throughput.value)} req/s",
    ]
    if measurement.latency is not None:
        times = measurement.latency.percentiles
        parts += [f"{name} {duration_text(times[key].value)}" for name, key in (("p50", "50"), ("p99", "99"))]
    cancelled = measurement.outcomes.get("cancelled", 0)
    failed = measurement.requests - measurement.outcomes.get("ok", 0) - cancelled
    parts += [f"{number:,} {name}" for number, name in ((failed, "failed"), (cancelled, "cancelled")) if number]
    return ", ".join(parts)


def _rate_text(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def level_name(kind: str, label: str) -> str:
    """Return a level as views name it."""
    return f"concurrency {label}" if kind == "concurrency" else label


_SCREEN_INTERVAL_S = 0.25
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
        self._next = now + _SCREEN_INTERVAL_S
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
