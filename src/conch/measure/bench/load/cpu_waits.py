"""How long a process of the generator was runnable without a processor, and which answers that delayed."""

import os
from typing import Final

from conch.measure.bench.load.lag_histogram import LagHistogram

_FILE: Final = "/proc/self/schedstat"
_FILE_BYTES: Final = 96


class CpuWaits:
    """The kernel's run-queue delay of the main thread. `total_ns` is None where the kernel does not count it.

    A closed loop has no schedule that it could be late for: a process that waits for a processor reads answers late
    instead, and the wait is in their latency.
    """

    __slots__ = ("_fd", "histogram", "total_ns")

    def __init__(self) -> None:
        self.histogram = LagHistogram()
        self.total_ns: int | None = None
        try:
            self._fd = os.open(_FILE, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._fd = -1
        self.read(0)

    def read(self, answers: int) -> None:
        """Count the wait since the call before, once for each of `answers` that were read meanwhile."""
        if self._fd < 0:
            return
        try:
            total = int(os.pread(self._fd, _FILE_BYTES, 0).split()[1])
        except (OSError, ValueError, IndexError):
            self._fd = -1
            self.total_ns = None
            return
        before = self.total_ns
        self.total_ns = total
        if before is not None and answers:
            self.histogram.add(total - before, answers)
