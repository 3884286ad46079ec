"""Free, total and resident memory, from /proc and the limits of control groups (containers)."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

_MIB, _GIB = 1 << 20, 1 << 30
_PROC = Path("/proc")
_GROUPS = Path("/sys/fs/cgroup")
REQUEST_MEMORY_SHARE = 4
MIN_REQUEST_MEMORY_BYTES = 256 * 2**20
WORKER_MEMORY_SHARE = 2
MIN_WORKER_MEMORY_BYTES = 2**30


def size_text(size: int) -> str:
    """Return bytes as MiB, or from 1 GiB on as GiB."""
    return f"{max(size, 0) / _GIB:.1f} GiB" if size >= _GIB else f"{max(size, 0) // _MIB} MiB"


def free_memory(proc: Path = _PROC, groups: Path = _GROUPS) -> int:
    """Return the free bytes, within the limits of control groups. The page cache counts as free."""
    unused = [limit - used for limit, used in _limits(proc, groups)]
    return max(min([of_machine("MemAvailable", proc), *unused]), 0)


def total_memory(proc: Path = _PROC, groups: Path = _GROUPS) -> int:
    """Return the bytes of this machine, or the lowest limit of control groups if that is less. Raises OSError."""
    return min([of_machine("MemTotal", proc), *(limit for limit, _ in _limits(proc, groups))])


def free_memory_share(proc: Path = _PROC, groups: Path = _GROUPS) -> float:
    """Return the free share of the memory; 1 where Linux does not tell."""
    try:
        return free_memory(proc, groups) / total_memory(proc, groups)
    except OSError:
        return 1.0


def default_request_memory() -> int:
    """Return the default limit of memory for request bodies in bytes: a share of the free memory."""
    return max(_known_free_memory() // REQUEST_MEMORY_SHARE, MIN_REQUEST_MEMORY_BYTES)


def worker_memory(workers: int, max_bytes: int) -> int:
    """Return each of `workers` processes' limit of address space in bytes: together a share of the free memory."""
    return min(max(_known_free_memory() // WORKER_MEMORY_SHARE // workers, MIN_WORKER_MEMORY_BYTES), max_bytes)


def _known_free_memory() -> int:
    try:
        return free_memory()
    except OSError:  # no /proc
        return 0


def resident_memory(pid: int, proc: Path = _PROC) -> int:
    """Return the resident bytes of a process and its descendants; 0 for a process that has ended."""
    try:
        own = int((proc / str(pid) / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0
    return own + sum(resident_memory(child, proc) for child in child_processes(pid, proc))


def child_processes(pid: int, proc: Path = _PROC) -> list[int]:
    """Return the children of a process; those of a thread that ends meanwhile may be missing."""
    children: list[int] = []
    with suppress(OSError):
        for task in (proc / str(pid) / "task").iterdir():
            with suppress(OSError):  # the thread has ended, or the kernel has no such file
                children += map(int, (task / "children").read_text().split())
    return children


def of_machine(field: str, proc: Path = _PROC) -> int:
    """Return the bytes of a field of `/proc/meminfo`. Raises OSError."""
    for line in (proc / "meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{proc / 'meminfo'} has no {field}")


def _limits(proc: Path, groups: Path) -> Iterator[tuple[int, int]]:
    """Yield limit and usage without the page cache of each control group of this process, in bytes."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            names, root = ("memory.max", "memory.current", "inactive_file"), groups
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            root = groups / "memory"
        else:
            continue
        # In a container the group may be mounted as the root, whatever its path is outside.
        inside = PurePosixPath(path.lstrip("/"))
        for group in (inside, *inside.parents) if inside.parts else (inside,):
            yield from _limit(root / group, *names)


def _limit(group: Path, limit_name: str, usage_name: str, cache_name: str) -> Iterator[tuple[int, int]]:
    try:
        limit, usage = (group / limit_name).read_text().strip(), int((group / usage_name).read_text())
        stats = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return
    if limit.isdecimal():  # and not "max"
        yield int(limit), usage - int(stats.get(cache_name, 0))
