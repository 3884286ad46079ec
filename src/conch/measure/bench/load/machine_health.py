"""What the client's machine kept from the load generator: time stolen, throttled, or waited for a processor."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# Columns of the line "cpu" in /proc/stat; guest time is in user time already.
_STEAL = 7
_SUMMED_COLUMNS = 8


@dataclass(frozen=True, slots=True)
class MachineCounters:
    """Totals since the start of the machine or cgroup; None where it does not tell."""

    taken_s: float  # monotonic
    cpu_s: float | None
    steal_s: float | None
    throttled_s: float | None
    pressure_s: float | None

    def steal_ratio(self, before: "MachineCounters") -> float | None:
        """Return the share of the machine's processor time since `before` that its hypervisor gave to others."""
        total, stolen = _difference(self.cpu_s, before.cpu_s), _difference(self.steal_s, before.steal_s)
        if total is None or stolen is None:
            return None
        return min(1.0, stolen / total) if total > 0 else 0.0

    def throttled_since(self, before: "MachineCounters") -> float | None:
        """Return the seconds since `before` in which this cgroup was throttled."""
        return _difference(self.throttled_s, before.throttled_s)

    def pressure_ratio(self, before: "MachineCounters") -> float | None:
        """Return the share of the time since `before` in which some process waited for a processor."""
        waited = _difference(self.pressure_s, before.pressure_s)
        wall = self.taken_s - before.taken_s
        return None if waited is None or wall <= 0 else min(1.0, waited / wall)


def machine_counters(root: Path = Path("/")) -> MachineCounters:
    """Read the counters of this machine, whose file system begins at `root`."""
    cpu_s, steal_s = _cpu(root / "proc/stat")
    return MachineCounters(
        taken_s=time.monotonic(),
        cpu_s=cpu_s,
        steal_s=steal_s,
        throttled_s=_throttled(root),
        pressure_s=_pressure(root / "proc/pressure/cpu"),
    )


def _cpu(file: Path) -> tuple[float | None, float | None]:
    try:
        columns = file.read_text().partition("\n")[0].split()
        ticks = [int(column) for column in columns[1 : 1 + _SUMMED_COLUMNS]]
        per_s = os.sysconf("SC_CLK_TCK")
        return sum(ticks) / per_s, ticks[_STEAL] / per_s
    except (OSError, ValueError, IndexError):
        return None, None


def _throttled(root: Path) -> float | None:
    """Return the throttled time of this process's cgroup: version 2 in microseconds, version 1 in nanoseconds."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if not controllers:
            folders = [root / "sys/fs/cgroup" / group.lstrip("/"), root / "sys/fs/cgroup"]
            seconds = _stat(folders, "throttled_usec", 1e6)
        elif "cpu" in controllers.split(","):
            base = root / "sys/fs/cgroup" / controllers
            cpu = root / "sys/fs/cgroup/cpu"
            seconds = _stat([base / group.lstrip("/"), base, cpu / group.lstrip("/"), cpu], "throttled_time", 1e9)
        else:
            continue
        if seconds is not None:
            return seconds
    return None


def _stat(folders: Sequence[Path], name: str, per_s: float) -> float | None:
    """Return a value of the first `cpu.stat` that has it."""
    for folder in folders:
        try:
            lines = (folder / "cpu.stat").read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            key, _, value = line.partition(" ")
            if key == name and value.isdigit():
                return int(value) / per_s
    return None


def _pressure(file: Path) -> float | None:
    try:
        for line in file.read_text().splitlines():
            kind, _, values = line.partition(" ")
            if kind == "some":
                return int(values.partition("total=")[2]) / 1e6
    except (OSError, ValueError):
        pass
    return None


def _difference(now: float | None, before: float | None) -> float | None:
    return None if now is None or before is None else max(0.0, now - before)
