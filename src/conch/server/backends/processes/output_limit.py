"""Bound what a child process writes to the server's log, in rate and in work per iteration of the event loop."""

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic

from conch.base.pacing import TokenBucket

# Of token buckets: the burst at once, and as much again each second.
MAX_LINES_PER_S = 2000
MAX_BYTES_PER_S = 2 << 20
# Lines that are logged in one iteration of the loop: about one millisecond.
_LINES_PER_TURN = 50
_REPORT_INTERVAL_S = 5.0


class OutputLimit:
    """Logs the lines of one process by `log(level, text, source)`, and drops those beyond the limit.

    Dropped lines are counted, and reported by `report` in intervals: the process is never blocked.
    """

    def __init__(self, log: Callable[[int, str, str], None], report: Callable[[str], None]) -> None:
        self._log = log
        self._report = report
        self._lines = TokenBucket(MAX_LINES_PER_S, MAX_LINES_PER_S, monotonic())
        self._bytes = TokenBucket(MAX_BYTES_PER_S, MAX_BYTES_PER_S, monotonic())
        self._queue: deque[tuple[int, str, str]] = deque()
        self._dropped_lines = self._dropped_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._turn = 0  # lines logged in this iteration of the loop

    @property
    def exhausted(self) -> bool:
        """Whether a line would be dropped."""
        now = monotonic()
        return self._lines.take(now, 0) < 1 or self._bytes.take(now, 0) < 0

    def write(self, level: int, text: str, source: str) -> None:
        """Log one line, now or in a later iteration of the loop, or drop it."""
        if self.exhausted:
            self.drop(1, len(text))
            return
        now = monotonic()
        self._lines.take(now, 1)
        self._bytes.take(now, len(text))
        if self._queue or self._turn >= _LINES_PER_TURN:
            self._queue.append((level, text, source))
            return
        if not self._turn:
            asyncio.get_running_loop().call_soon(self._next_turn)
        self._turn += 1
        self._log(level, text, source)

    def drop(self, lines: int, size: int) -> None:
        """Count lines that are not logged."""
        self._dropped_lines += lines
        self._dropped_bytes += size
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_REPORT_INTERVAL_S, self._report_dropped)

    def close(self) -> None:
        """Log what waits, and report what was dropped: the process has exited."""
        while self._queue:
            self._log(*self._queue.popleft())
        if self._timer is not None:
            self._timer.cancel()
            self._report_dropped()

    def _next_turn(self) -> None:
        self._turn = 0
        while self._queue and self._turn < _LINES_PER_TURN:
            self._turn += 1
            self._log(*self._queue.popleft())
        if self._turn:
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _report_dropped(self) -> None:
        self._timer = None
        lines, size = self._dropped_lines, self._dropped_bytes
        self._dropped_lines = self._dropped_bytes = 0
        self._report(
            f"dropped {lines} lines ({size} bytes) of its output, which exceeds {MAX_LINES_PER_S} lines or "
            f"{MAX_BYTES_PER_S >> 20} MiB per second"
        )
