"""The number of processor cores that this process may use."""

import os
from pathlib import Path

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
