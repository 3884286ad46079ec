"""CPU time and memory of the machine, of the server's process and of the processes of models, from `/proc`."""

import asyncio
import os
import resource
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from conch.base.process.process_stat import TICKS_PER_S, ProcessStat
from conch.domain.exposition import Family
from conch.machine.memory import child_processes, of_machine
from conch.server.observability.metrics.reading import Reading, read_one


@dataclass(frozen=True, slots=True)
class ProcessTreeUsage:
    """CPU seconds and resident bytes of a process with its descendants."""

    cpu_s: float
    resident_bytes: int


@dataclass(frozen=True, slots=True)
class ServerUsage:
    """The server's own process."""

    cpu_s: float
    resident_bytes: int
    virtual_bytes: int
    started_s: float  # since the epoch
    open_fds: int
    max_fds: int


class ProcessMeter:
    """Samples processes in a thread, every `interval_s`, while `run` runs. `pids` returns those of models.

    `usage` has the latest sample by process id; it is empty on systems without `/proc`.
    """

    def __init__(self, pids: Callable[[], Iterable[int]], interval_s: float, proc: Path = Path("/proc")) -> None:
        self.usage: dict[int, ProcessTreeUsage] = {}
        self.server: ServerUsage | None = None
        self._pids = pids
        self._interval_s = interval_s
        self._proc = proc

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            await asyncio.to_thread(self.sample, list(self._pids()))
            await asyncio.sleep(self._interval_s)

    def sample(self, pids: Iterable[int]) -> None:
        """Sample the server and other processes. Those that have ended are omitted."""
        trees = ((pid, self._tree(pid)) for pid in pids)
        self.usage = {pid: usage for pid, usage in trees if usage is not None}
        with suppress(OSError, ValueError, StopIteration):
            self.server = self._server() or self.server

    def _tree(self, pid: int) -> ProcessTreeUsage | None:
        """Return the usage of a process and its descendants, also of those that have ended and were waited for."""
        stat = ProcessStat.read(pid, self._proc)
        if stat is None:
            return None
        usage = ProcessTreeUsage(stat.cpu_s, stat.resident_bytes)
        for child in child_processes(pid, self._proc):
            if (more := self._tree(child)) is not None:
                usage = ProcessTreeUsage(usage.cpu_s + more.cpu_s, usage.resident_bytes + more.resident_bytes)
        return usage

    def _server(self) -> ServerUsage | None:
        stat = ProcessStat.read("self", self._proc)
        if stat is None:
            return None
        boot = next(line for line in (self._proc / "stat").read_text().splitlines() if line.startswith("btime "))
        return ServerUsage(
            cpu_s=stat.own_ticks / TICKS_PER_S,
            resident_bytes=stat.resident_bytes,
            virtual_bytes=stat.virtual_bytes,
            started_s=int(boot.split()[1]) + stat.started / TICKS_PER_S,
            open_fds=len(os.listdir(self._proc / "self" / "fd")),  # noqa: PTH208 - faster for thousands
            max_fds=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        )


SERVER: tuple[Reading[ServerUsage], ...] = (
    Reading("process_cpu_seconds_total", lambda u: u.cpu_s),
    Reading("process_resident_memory_bytes", lambda u: u.resident_bytes),
    Reading("process_virtual_memory_bytes", lambda u: u.virtual_bytes),
    Reading("process_start_time_seconds", lambda u: u.started_s),
    Reading("process_open_fds", lambda u: u.open_fds),
    Reading("process_max_fds", lambda u: u.max_fds),
)


def server_families(meter: ProcessMeter) -> Iterator[Family]:
    """Yield the families of the server's process."""
    return read_one(SERVER, meter.server)


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
            total, available = of_machine("MemTotal", self._proc), of_machine("MemAvailable", self._proc)
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
