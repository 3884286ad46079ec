"""The processor cores that this process may use, and on which its threads and children run."""

import contextlib
import os
from collections.abc import Collection
from pathlib import Path

_NODES = Path("/sys/devices/system/node")
_MAX_CORE = 8191
_MAX_RANGE_DIGITS = 9  # of `first-last`
_QUOTA_FILE = Path("/sys/fs/cgroup/cpu.max")


def usable_cores(quota_file: Path = _QUOTA_FILE) -> int:
    """Return the cores of this process's affinity, or fewer where a container's CPU quota (cgroup v2) allows less."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = quota_file.read_text(encoding="ascii").split()
        return max(1, min(cores, -(-int(quota) // int(period))))
    # No such file: no cgroup v2. "max": no quota.
    except (OSError, ValueError):
        return cores


def read_core_list(text: str) -> frozenset[int]:
    """Return the cores of a list such as `0-3,8`. Raises ValueError."""
    cores: set[int] = set()
    for part in text.strip().split(","):
        first, dash, last = part.partition("-")
        if not (first.isdecimal() and (last.isdecimal() if dash else True)) or len(part) > _MAX_RANGE_DIGITS:
            raise ValueError(text)
        cores.update(range(int(first), int(last or first) + 1))
    if not cores or max(cores) > _MAX_CORE:
        raise ValueError(text)
    return frozenset(cores)


def node_cores(node: int) -> frozenset[int]:
    """Return the cores of a NUMA node; empty if the machine has no such node, or none with cores."""
    try:
        return read_core_list((_NODES / f"node{node}" / "cpulist").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return frozenset()


def pin_thread(cores: Collection[int]) -> None:
    """Run the calling thread, and those that it starts, on these cores; on any if there are none."""
    if cores:
        os.sched_setaffinity(0, cores)


def pin_process(pid: int, cores: Collection[int]) -> None:
    """Run a process and what it starts on these cores; on any if there are none. No-op after its exit."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for thread in Path(f"/proc/{pid}/task").iterdir() if cores else ():
            os.sched_setaffinity(int(thread.name), cores)
