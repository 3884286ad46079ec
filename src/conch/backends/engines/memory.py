"""How the memory of the machine is shared out among engines: what each may count on when it is loaded.

A KV cache may be reserved at once and filled in time, so that the memory which is free says little: what engines were
promised and have not taken yet is not to be promised again. Engines size their caches by the offer, see
`conch_child/engine/cache_size.py`, and tell what has become of it.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from conch.backends.engines.free_memory import free_memory, resident_memory
from conch.generation import EngineInfo

GIB = 1 << 30
# The largest cache that engines give themselves.
_LARGEST = 16 * GIB


class Holder(Protocol):
    """A process that holds memory."""

    @property
    def pid(self) -> int:
        """Its number, 0 before it is started."""

    @property
    def alive(self) -> bool:
        """Whether it runs."""


@dataclass(eq=False, slots=True)
class MemoryClaim:
    """What one engine's process will have taken when its cache is full, as far as it is known."""

    name: str
    holder: Holder
    expected: int  # bytes
    gpu_share: float = 0.0  # of a GPU's memory

    @property
    def over(self) -> bool:
        """Whether the process has ended."""
        return bool(self.holder.pid) and not self.holder.alive


class EngineMemory:
    """The books of one server. `free` and `resident` measure: the machine, and a process with all below it."""

    def __init__(self, free: Callable[[], int] = free_memory, resident: Callable[[int], int] = resident_memory) -> None:
        self._free = free
        self._resident = resident
        self._claims: list[MemoryClaim] = []

    def claim(self, name: str, holder: Holder, weights: int, cache: int | None) -> tuple[MemoryClaim, dict[str, Any]]:
        """Open an engine's account, and return what it is offered, by the names that engines know.

        `weights` are the bytes of its files, `cache` those of its cache, None if it takes what it is offered. With both
        it counts until it is settled: others may be loaded at the same time.
        """
        self._claims = [claim for claim in self._claims if not claim.over]
        taken = {claim: self._resident(claim.holder.pid) if claim.holder.pid else 0 for claim in self._claims}
        promised: Counter[str] = Counter()
        for each, size in taken.items():
            promised[each.name] += max(each.expected - size, 0)
        free = self._free()
        capacity = free + sum(taken.values())
        offer: dict[str, Any] = {
            "free": max(free - sum(promised.values()), 0),
            "capacity": capacity,
            "promised": dict(+promised),
            "gpu_shares": {each.name: each.gpu_share for each in taken if each.gpu_share},
        }
        claim = MemoryClaim(name, holder, weights + (min(capacity // 4, _LARGEST) if cache is None else cache))
        self._claims.append(claim)
        return claim, offer

    def settle(self, claim: MemoryClaim, info: EngineInfo) -> None:
        """Enter what an engine has become: what it has in memory now, and its cache where that is no part of it yet."""
        to_come = 0 if info.kv_cache_taken else info.kv_cache_bytes
        claim.expected = self._resident(claim.holder.pid) + to_come
        claim.gpu_share = info.gpu_memory_share

    def release(self, claim: MemoryClaim) -> None:
        """Close the account of an engine that has not come up."""
        if claim in self._claims:
            self._claims.remove(claim)


def size_of(directory: Path) -> int:
    """Return how many bytes the files in a folder have: about what a model's weights take."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def read_options(path: Path) -> Mapping[str, Any]:
    """Return what a `model.json` says; nothing where it says nothing that can be read, which its engine will refuse."""
    try:
        options = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return options if isinstance(options, dict) else {}
