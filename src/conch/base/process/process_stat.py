"""What Linux counts for a process, /proc/PID/stat (proc(5)), and how long threads wait for a processor."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

PROC = Path("/proc")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_THREAD = Path("/proc/thread-self/schedstat")
_DELAY_NS = re.compile(rb"\d+ (\d+)")
_PRESSURE_US = re.compile(rb"some .*\btotal=(\d+)")
_COUNTER_BYTES = 256
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# Fields after the name in parentheses, counted from the state.
_STATE, _PARENT, _UTIME, _STIME, _CUTIME, _CSTIME, _STARTED, _VSIZE, _RSS = 0, 1, 11, 12, 13, 14, 19, 20, 21


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """One reading of a process. CPU times and its start, after the machine's, are in clock ticks."""

    name: str
    state: str  # a letter: R running, S sleeping, T stopped, Z not yet waited for, ...
    parent: int
    own_ticks: int
    descendants_ticks: int  # of descendants that have ended and were waited for
    started: int
    virtual_bytes: int
    resident_bytes: int

    @property
    def cpu_s(self) -> float:
        """Seconds of processor time of the process and of its descendants that have ended."""
        return (self.own_ticks + self.descendants_ticks) / TICKS_PER_S

    @classmethod
    def read(cls, pid: int | str, proc: Path = PROC) -> Self | None:
        """Return the reading of a process, or of "self"; None if there is none."""
        try:
            name, _, text = (proc / str(pid) / "stat").read_text("utf-8", "replace").rpartition(")")
            fields = text.split()
            return cls(
                name.partition("(")[2],
                fields[_STATE],
                int(fields[_PARENT]),
                int(fields[_UTIME]) + int(fields[_STIME]),
                int(fields[_CUTIME]) + int(fields[_CSTIME]),
                int(fields[_STARTED]),
                int(fields[_VSIZE]),
                int(fields[_RSS]) * _PAGE_BYTES,
            )
        except (OSError, ValueError, IndexError):
            return None


class _CounterFile:
    """A file of /proc that is read often. Readable from any thread until `close`."""

    __slots__ = ("_fd",)

    def __init__(self, path: Path) -> None:
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._fd = -1

    def close(self) -> None:
        """Release the file; from now on it has no counts."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _count(self, count: re.Pattern[bytes]) -> int | None:
        """Return the group of a pattern as a number; None if it is not there."""
        try:
            match = count.match(os.pread(self._fd, _COUNTER_BYTES, 0)) if self._fd >= 0 else None
        except OSError:
            self.close()
            return None
        return None if match is None else int(match[1])


class CpuWait(_CounterFile):
    """The run-queue delay of the thread that makes this object."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(_THREAD)

    def total_ns(self) -> int | None:
        """Return the delay since the thread began in nanoseconds, None where the kernel does not count it."""
        return self._count(_DELAY_NS)


class CpuPressure(_CounterFile):
    """How long threads of the machine waited for a processor: the kernel's pressure stall information (`some`)."""

    __slots__ = ()

    def __init__(self, proc: Path = PROC) -> None:
        super().__init__(proc / "pressure" / "cpu")

    def total_s(self) -> float:
        """Return the seconds since the start in which a thread waited; 0.0 where the kernel does not count them."""
        return (self._count(_PRESSURE_US) or 0) / 1e6
