"""Utilization of the machine's CPU and memory, from `/proc`."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic


@dataclass(frozen=True, slots=True)
class HostUsage:
    """Utilization of the machine. `cpu_utilization` is of all cores together, 0 to 1."""

    cpu_utilization: float
    memory_total_bytes: int
    memory_used_bytes: int


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Clock ticks since boot, of all cores together."""

    total: int
    idle: int


class HostMeter:
    """Measures the machine, at most once per `interval_s`; in between it returns the last measurement.

    CPU utilization is that since the previous measurement, or since boot.
    """

    def __init__(self, interval_s: float, proc: Path = Path("/proc"), clock: Callable[[], float] = monotonic) -> None:
        self._interval_s = interval_s
        self._proc = proc
        self._clock = clock
        self._times = CpuTimes(0, 0)
        self._usage: HostUsage | None = None
        self._measured_at = 0.0

    def usage(self) -> HostUsage | None:
        """Return the utilization, None without `/proc`."""
        now = self._clock()
        if self._usage is None or now - self._measured_at >= self._interval_s:
            self._usage = self._measure()
            self._measured_at = now
        return self._usage

    def _measure(self) -> HostUsage | None:
        try:
            times = parse_stat((self._proc / "stat").read_text())
            total, available = parse_meminfo((self._proc / "meminfo").read_text())
        except (OSError, ValueError):
            return None
        before, self._times = self._times, times
        # The kernel may decrease the iowait ticks; the utilization must stay between 0 and 1.
        elapsed = max(times.total - before.total, 0)
        idle = min(max(times.idle - before.idle, 0), elapsed)
        utilization = (elapsed - idle) / elapsed if elapsed else 0.0
        return HostUsage(utilization, total, total - available)


def parse_stat(text: str) -> CpuTimes:
    """Parse the first line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal.

    Raises ValueError.
    """
    words = text.partition("\n")[0].split()
    if len(words) < 5 or words[0] != "cpu":
        raise ValueError(f"not a line of processor times: {words}")
    # The others are times of guests, which are included in user and nice.
    ticks = [int(word) for word in words[1:9]]
    return CpuTimes(total=sum(ticks), idle=sum(ticks[3:5]))


def parse_meminfo(text: str) -> tuple[int, int]:
    """Parse total and available bytes in `/proc/meminfo`. Raises ValueError."""
    pairs = (line.partition(":")[::2] for line in text.splitlines())
    kib = {name: value.split()[0] for name, value in pairs if value.strip()}
    try:
        return int(kib["MemTotal"]) * 1024, int(kib["MemAvailable"]) * 1024
    except KeyError as error:
        raise ValueError(f"no line {error} in /proc/meminfo") from None
