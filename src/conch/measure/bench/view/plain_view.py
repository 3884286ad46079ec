"""Progress as lines, for pipes and files."""

import sys
from time import monotonic

from conch.base.durations import duration_text
from conch.measure.bench.measure_level import Progress
from conch.measure.bench.measurement import Measurement
from conch.measure.bench.view.run_view import RunView
from conch.measure.bench.view.snapshot import Snapshot, take_snapshot

_INTERVAL_S = 2.0


class PlainView(RunView):
    """Prints a line every two seconds, to stderr."""

    def __init__(self) -> None:
        """Assign."""
        self._next = 0.0

    def progress(self, progress: Progress) -> None:
        """Print a line if it is time for one."""
        if monotonic() >= self._next:
            self._next = monotonic() + _INTERVAL_S
            self._print(snapshot_line(take_snapshot(progress)))

    def measured(self, measurement: Measurement) -> None:
        """Print the figures of the level."""
        self._next = 0.0
        self._print(measurement_line(measurement))

    def end(self) -> None:
        """Nothing is to be restored."""

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
    if snapshot.token_rate is not None:
        parts.append(f"{snapshot.token_rate:,.0f} tok/s")
    if snapshot.response_rate is not None:
        parts.append(f"{snapshot.response_rate:,.0f} responses/s")
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
