"""Memory within the limits of a container, and how much the server gives away by default."""

from pathlib import Path

import pytest

from conch.machine import memory
from conch.machine.memory import default_request_memory, free_memory, free_memory_share, total_memory, worker_memory

GIB = 2**30


@pytest.mark.parametrize(
    ("free", "workers", "share"),
    [(64 * GIB, 4, 6 * GIB), (16 * GIB, 2, 4 * GIB), (3 * GIB, 4, GIB), (0, 4, GIB)],
)
def test_workers_together_take_no_more_than_half_of_free_memory(
    monkeypatch: pytest.MonkeyPatch, free: int, workers: int, share: int
) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: free)
    assert worker_memory(workers, 6 * GIB) == share


def test_without_proc_defaults_are_the_least(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> int:
        raise FileNotFoundError("/proc/meminfo")

    monkeypatch.setattr(memory, "free_memory", absent)
    assert worker_memory(2, 6 * GIB) == GIB
    assert default_request_memory() == 256 * 2**20


def test_a_container_s_limit_counts(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    write(proc / "meminfo", "MemTotal: 100 kB\nMemAvailable: 64 kB\n")
    assert free_memory(proc, groups) == 64 * 1024
    assert free_memory_share(proc, groups) == 0.64
    write(proc / "self" / "cgroup", "0::/pod/box\n")
    write(groups / "pod" / "memory.max", "40000\n")
    write(groups / "pod" / "memory.current", "30000\n")
    write(groups / "pod" / "memory.stat", "anon 1\ninactive_file 5000\n")
    write(groups / "pod" / "box" / "memory.max", "max\n")
    write(groups / "pod" / "box" / "memory.current", "1\n")
    write(groups / "pod" / "box" / "memory.stat", "inactive_file 0\n")
    assert (free_memory(proc, groups), total_memory(proc, groups)) == (15000, 40000)
    # The older kind of groups, and mounted as the root of what the container sees.
    write(proc / "self" / "cgroup", "4:cpu,memory:/docker/0a\n")
    write(groups / "memory" / "memory.limit_in_bytes", "20000\n")
    write(groups / "memory" / "memory.usage_in_bytes", "19000\n")
    write(groups / "memory" / "memory.stat", "total_inactive_file 2000\n")
    assert (free_memory(proc, groups), free_memory_share(proc, groups)) == (3000, 0.15)
    assert free_memory_share(tmp_path, groups) == 1


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
