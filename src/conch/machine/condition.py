"""Conditions of this machine and installation under which a server runs worse: the detail of each, "" if it is fine.

The server samples them (`conch.server.server`), and `conch doctor` shows them. Reasons are those of
`conch.domain.degradations`.
"""

import _ssl
import os
import resource
import ssl
import time
from collections.abc import Callable
from pathlib import Path

from conch.base.build_info import is_compiled
from conch.machine.cores import usable_cores

MIN_FILES = 4096
MIN_SHARED_MEMORY_BYTES = 128 * 2**20
_MIN_SWAPPED_BYTES = 64 * 2**20
_MIN_THROTTLED, _MIN_PERIODS = 0.05, 20
_MAX_STEP_S = 0.5
_MAX_AHEAD_S = 3600.0
_WARN_DAYS = 14
_CPU_STATISTICS = Path("/sys/fs/cgroup/cpu.stat")
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where Linux has it


def interpreted_build() -> str:
    """Return whether the request path runs from its sources."""
    return "" if is_compiled() else "the request path is not compiled in this installation"


def one_core() -> str:
    """Return whether this process may use only one core."""
    return "this process may use 1 processor core" if usable_cores() == 1 else ""


def file_descriptors_low() -> str:
    """Return whether the hard limit, to which the server raises its own, is low."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f"the hard limit of open files is {hard}" if 0 <= hard < MIN_FILES else ""


def shared_memory_small(folder: Path = _SHARED_MEMORY) -> str:
    """Return whether /dev/shm is missing or small; containers have 64 MiB by default."""
    try:
        system = os.statvfs(folder)
    except OSError as error:
        return f"{folder} is not available: {error.strerror}"
    size = system.f_blocks * system.f_frsize
    return f"{folder} has {size >> 20} MiB" if size < MIN_SHARED_MEMORY_BYTES else ""


def huge_pages_off(file: Path = Path("/sys/kernel/mm/transparent_hugepage/enabled")) -> str:
    """Return whether transparent huge pages are off."""
    try:
        return f"{file} is never" if "[never]" in file.read_text() else ""
    except OSError:  # not Linux, or hidden in the container
        return ""


def swapped(status: Path = Path("/proc/self/status")) -> str:
    """Return whether pages of this process are in swap."""
    try:
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        size = int(fields["VmSwap"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return ""
    return f"{size >> 20} MiB of this process are swapped out" if size >= _MIN_SWAPPED_BYTES else ""


def certificate_expiring(file: str, now_s: Callable[[], float] = time.time) -> str:
    """Return whether the first certificate of a PEM file ends within 14 days; "" if it cannot be read."""
    try:
        end = str(_ssl._test_decode_cert(file)["notAfter"])  # type: ignore[attr-defined]
        left_s = ssl.cert_time_to_seconds(end) - now_s()
    except (OSError, ValueError, KeyError):
        return ""
    if left_s > _WARN_DAYS * 86400:
        return ""
    return f"the certificate '{file}' {'expired' if left_s < 0 else 'expires'} at {end}"


def throttled_periods(file: Path = _CPU_STATISTICS) -> tuple[int, int]:
    """Return in how many periods the CPU quota of the control group applied so far, and in how many it stopped threads.

    0 without a quota.
    """
    try:
        values = dict(line.split() for line in file.read_text().splitlines())
        return int(values["nr_periods"]), int(values["nr_throttled"])
    except (OSError, KeyError, ValueError):
        return 0, 0


class Throttling:
    """Whether the CPU quota of the control group stops this process in more than 5 % of the periods."""

    def __init__(self, file: Path = _CPU_STATISTICS) -> None:
        self._file = file
        self._periods, self._throttled = throttled_periods(self._file)

    def __call__(self) -> str:
        """Return how much of the time since the last call was throttled, "" for little."""
        before = self._periods, self._throttled
        self._periods, self._throttled = throttled_periods(self._file)
        periods, throttled = self._periods - before[0], self._throttled - before[1]
        if periods < _MIN_PERIODS or throttled < _MIN_THROTTLED * periods:
            return ""
        return f"the CPU quota of the control group stopped threads in {throttled} of {periods} periods"


class ClockWatch:
    """Notices steps of the wall clock against the monotonic one."""

    def __init__(self, offset_s: Callable[[], float] = lambda: time.time() - time.monotonic()) -> None:
        self._now = offset_s
        self._offset_s = offset_s()

    def step(self) -> str:
        """Return a sentence if the clock was stepped by more than half a second since the last call."""
        before, self._offset_s = self._offset_s, self._now()
        step_s = self._offset_s - before
        return f"the wall clock was stepped by {step_s:+.1f} s" if abs(step_s) > _MAX_STEP_S else ""


class CautiousClock:
    """Unix time to decide what is old enough to delete: a wall clock that is stepped forward makes nothing old."""

    def __init__(
        self,
        wall_s: Callable[[], float] = time.time,
        elapsed_s: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    ) -> None:
        self._wall_s = wall_s
        self._elapsed_s = elapsed_s
        self._max_offset_s = wall_s() - elapsed_s() + _MAX_AHEAD_S

    def now_s(self) -> float:
        """Return the wall clock, or less where it is over an hour ahead of what has passed since the start."""
        return min(self._wall_s(), self._elapsed_s() + self._max_offset_s)
