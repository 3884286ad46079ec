"""Memory reservations of engines, so that no memory is promised to two of them.

A KV cache may be allocated lazily, so free memory alone does not show what other engines will still use: memory that
they have reserved but not allocated yet is not offered again. Engines size their caches from the offer, see
`conch_child/engine/cache_size.py`, and report the result.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from conch.domain.generation import EngineInfo
from conch.machine.memory import free_memory, resident_memory

GIB = 1 << 30
_MAX_DEFAULT_CACHE_BYTES = 16 * GIB
_CACHE_STEP_BYTES = GIB  # OpenVINO's caches have whole GiB


class Holder(Protocol):
    """A process that allocates memory."""

    @property
    def pid(self) -> int:
        """Process id, 0 before it is started."""

    @property
    def alive(self) -> bool:
        """Whether it is running."""


@dataclass(eq=False, slots=True)
class MemoryClaim:
    """The expected memory of one engine process with a full cache."""

    name: str
    holder: Holder
    expected: int  # bytes
    gpu_share: float = 0.0  # of a GPU's memory

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return bool(self.holder.pid) and not self.holder.alive


class EngineMemory:
    """Reservations of one server. `free` measures the machine, `resident` a process with its descendants, in bytes."""

    def __init__(self, free: Callable[[], int] = free_memory, resident: Callable[[int], int] = resident_memory) -> None:
        self._free = free
        self._resident = resident
        self._claims: list[MemoryClaim] = []
        self.segments: set[int] = set()  # inodes of the engines' objects in /dev/shm, which clients must not register

    def claim(self, name: str, holder: Holder, weights: int, cache: int | None) -> tuple[MemoryClaim, dict[str, Any]]:
        """Reserve memory for an engine; return the claim, and the offer as `conch_child/engine/cache_size.py` reads it.

        `weights` is the size of its files, `cache` that of its cache in bytes, None for the default size. Until
        `settle` the claim is their sum, since other engines may be loading at the same time.
        """
        self._claims = [claim for claim in self._claims if not claim.ended]
        taken = {claim: self._resident(claim.holder.pid) if claim.holder.pid else 0 for claim in self._claims}
        promised: Counter[str] = Counter()
        for claim, size in taken.items():
            promised[claim.name] += max(claim.expected - size, 0)
        free = self._free()
        capacity = free + sum(taken.values())
        offer: dict[str, Any] = {
            "free": max(free - sum(promised.values()), 0),
            "capacity": capacity,
            "promised": dict(+promised),
            "gpu_shares": {claim.name: claim.gpu_share for claim in taken if claim.gpu_share},
        }
        size = _default_cache(capacity) if cache is None else cache
        claim = MemoryClaim(name, holder, weights + size)
        self._claims.append(claim)
        return claim, offer

    def reduced_cache(self, offer: Mapping[str, Any], info: EngineInfo) -> str:
        """Return how much smaller a cache of the default size is than on an idle machine, "" if it is not."""
        size = _default_cache(offer["capacity"])
        if not 0 < info.kv_cache_bytes <= size - _CACHE_STEP_BYTES:
            return ""
        return (
            f"the KV cache has {info.kv_cache_bytes >> 20} MiB, not {size >> 20} MiB: no more memory is free after the "
            "weights"
        )

    def settle(self, claim: MemoryClaim, info: EngineInfo) -> None:
        """Set the claim of a loaded engine: its resident memory, plus its cache if that is not allocated yet."""
        unallocated = 0 if info.kv_cache_taken else info.kv_cache_bytes
        claim.expected = self._resident(claim.holder.pid) + unallocated
        claim.gpu_share = info.gpu_memory_share

    def release(self, claim: MemoryClaim) -> None:
        """Drop the claim of an engine that failed to load."""
        if claim in self._claims:
            self._claims.remove(claim)


def _default_cache(capacity: int) -> int:
    """Return the default size of a KV cache where engines may use `capacity` bytes together."""
    return min(capacity // 4, _MAX_DEFAULT_CACHE_BYTES)


def folder_size(directory: Path) -> int:
    """Return the bytes of the files in a folder, as an estimate of a model's weights."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
