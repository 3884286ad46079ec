"""How much memory the server gives away by default."""

import pytest

from conch.backends.engines import free_memory
from conch.backends.engines.free_memory import default_request_memory, worker_memory

GIB = 2**30


@pytest.mark.parametrize(
    ("free", "workers", "each"),
    [(64 * GIB, 4, 6 * GIB), (16 * GIB, 2, 4 * GIB), (3 * GIB, 4, GIB), (0, 4, GIB)],
)
def test_workers_together_take_no_more_than_half_of_free_memory(
    monkeypatch: pytest.MonkeyPatch, free: int, workers: int, each: int
) -> None:
    monkeypatch.setattr(free_memory, "free_memory", lambda: free)
    assert worker_memory(workers, 6 * GIB) == each


def test_without_proc_defaults_are_the_least(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> int:
        raise FileNotFoundError("/proc/meminfo")

    monkeypatch.setattr(free_memory, "free_memory", absent)
    assert worker_memory(2, 6 * GIB) == GIB
    assert default_request_memory() == 256 * 2**20
