"""CPU time of a thread, its waits for a processor, and how often it was interrupted, for each execution."""

import os
import resource
from typing import Tuple

# A reading takes 2 to 3 µs; shorter executions are not measured.
MIN_MEASURED_NS = 100_000
UNKNOWN = (0, 0, 0)
_FILE_BYTES = 96


class CpuMeter:
    """Measures the thread that makes it and calls `used` after each execution.

    From the end of one execution to that of the next: the waits of a thread that is woken up belong to what it is woken
    up for.
    """

    def __init__(self) -> None:
        try:
            self._fd = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # a sandbox, or a kernel that does not count
            self._fd = -1
        self._last = self._read()
        self._known = True  # whether the last execution was measured

    def used(self, elapsed_ns: int) -> Tuple[int, int, int]:
        """Return CPU time and wait in ns and involuntary switches for an execution of `elapsed_ns`; 0 where unknown."""
        if elapsed_ns < MIN_MEASURED_NS:
            self._known = False
            return UNKNOWN
        before, known = self._last, self._known
        self._last, self._known = self._read(), True
        if not known:
            return UNKNOWN
        cpu, wait, switches = self._last
        return cpu - before[0], wait - before[1], switches - before[2]

    def close(self) -> None:
        """Release the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read(self) -> Tuple[int, int, int]:
        usage = resource.getrusage(resource.RUSAGE_THREAD)
        wait = 0
        if self._fd >= 0:
            try:
                wait = int(os.pread(self._fd, _FILE_BYTES, 0).split()[1])
            except (OSError, ValueError, IndexError):
                self.close()
        return int((usage.ru_utime + usage.ru_stime) * 1e9), wait, usage.ru_nivcsw
