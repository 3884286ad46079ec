"""Progress of transfers: a bar on a terminal, a line every few seconds in a log."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

_LINE_EVERY_S = 5.0


class Fetched:
    """Counts the bytes of a download. Thread-safe."""

    def __init__(self) -> None:
        self.expected = 0
        self.fetched = 0
        self._lock = threading.Lock()

    def expect(self, count: int) -> None:
        """Add bytes that are to be fetched."""
        with self._lock:
            self.expected += count
            self.show()

    def received(self, count: int) -> None:
        """Add bytes that were received."""
        with self._lock:
            self.fetched += count
            self.show()

    def show(self) -> None:
        """Show the counts. Called with the lock held."""


class FetchBar(Fetched):
    """Shows the counts in a bar, which is invisible until the first byte, so that a failure prints no empty bar."""

    def __init__(self, bar: Progress) -> None:
        super().__init__()
        self._bar = bar
        self._task = bar.add_task("fetching", total=None, visible=False)

    def show(self) -> None:
        """Update the bar."""
        self._bar.update(self._task, total=self.expected, completed=self.fetched, visible=self.fetched > 0)


class FetchLines(Fetched):
    """Prints the counts in lines to stderr, at most one every few seconds, and one at the end."""

    def __init__(self) -> None:
        super().__init__()
        self._begun_s = monotonic()
        self._next_s = self._begun_s + _LINE_EVERY_S

    def show(self) -> None:
        """Print a line if it is due."""
        now_s = monotonic()
        if now_s >= self._next_s or (self.fetched and self.fetched == self.expected):
            self._next_s = now_s + _LINE_EVERY_S
            rate = round(self.fetched / max(now_s - self._begun_s, 0.001))
            print(
                f"fetched {decimal(self.fetched)} of {decimal(self.expected)} ({decimal(rate)}/s)",
                file=sys.stderr,
                flush=True,
            )


@contextmanager
def fetch_progress(console: Console) -> Iterator[Fetched]:
    """Yield the counter of a download, shown as it suits the console."""
    if not console.is_terminal:
        yield FetchLines()
        return
    with progress_bar(console) as bar:
        yield FetchBar(bar)


def progress_bar(console: Console) -> Progress:
    """Return a bar with size and speed."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    return Progress(*columns, console=console)
