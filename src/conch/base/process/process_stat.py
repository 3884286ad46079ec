"""What Linux counts for a process, /proc/PID/stat (proc(5)), and how long threads wait for a processor."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

PROC = Path("/proc")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_THREAD = "/proc/thread-self/schedstat"
_THREAD_BYTES = 96
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


class CpuWait:
    """The run-queue delay of the thread that makes this object. Readable from any thread until `close`."""

    __slots__ = ("_fd",)

    def __init__(self) -> None:
        try:
            self._fd = os.open(_THREAD, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._fd = -1

    def total_ns(self) -> int | None:
        """Return the delay since the thread began in nanoseconds, None where the kernel does not count it."""
        if self._fd < 0:
            return None
        try:
            return int(os.pread(self._fd, _THREAD_BYTES, 0).split()[1])
        except (OSError, ValueError, IndexError):
            self.close()
            return None

    def close(self) -> None:
        """Release the file; from now on `total_ns` is None."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def cpu_pressure(proc: Path = PROC) -> float:
    """Return the part of the last ten seconds in which threads of the machine waited for a processor, 0 to 1.

    It is the kernel's pressure stall information (`some avg10`); 0.0 where the kernel does not have it.
    """
    try:
        some, *_ = (proc / "pressure" / "cpu").read_text().splitlines()
        averages = dict(field.split("=") for field in some.split()[1:])
        return float(averages["avg10"]) / 100
    except (OSError, ValueError, KeyError):
        return 0.0
