"""The default size of a KV cache, computed from the server's memory offer.

*offer*: `free`, bytes neither in use nor reserved for another engine; `capacity`, bytes that all engines together may
use; `promised`, model → bytes reserved but not allocated yet; `gpu_shares`, model → its share of a GPU's memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .driver import Refused

GIB = 1 << 30
# Shares of `capacity`, and of the free memory after the weights.
_SHARE_OF_CAPACITY, _SHARE_OF_FREE = 0.25, 0.5
_MAX_CACHE_BYTES = 16 * GIB


def default_size(offer: Mapping[str, Any], weights: int, min_bytes: int) -> tuple[int, str]:
    """Return the default size of a cache in bytes, and the reason. Raises Refused if `min_bytes` do not fit."""
    check_fit(offer, weights, min_bytes)
    rest = offer["free"] - weights
    size = max(
        min_bytes, min(_MAX_CACHE_BYTES, int(offer["capacity"] * _SHARE_OF_CAPACITY), int(rest * _SHARE_OF_FREE))
    )
    return (
        size,
        f"engines may use {format_gib(offer['capacity'])}, of which {format_gib(rest)} are free after the weights",
    )


def check_fit(offer: Mapping[str, Any], weights: int, cache: int) -> None:
    """Raise Refused if a model's weights and its cache exceed the free memory."""
    if weights + cache <= offer["free"]:
        return
    promised = ", ".join(f"{format_gib(size)} to '{name}'" for name, size in offer["promised"].items())
    raise Refused(
        f"not enough memory: the weights take {format_gib(weights)} and the KV cache {format_gib(cache)} at least, and "
        f"{format_gib(offer['free'])} are free" + (f" beside what is promised: {promised}" if promised else "")
    )


def overcommit_warning(offer: Mapping[str, Any], own: float) -> str:
    """Return a warning if engines request more than all of a GPU's memory, else ""."""
    shares = offer["gpu_shares"]
    if own + sum(shares.values()) <= 1:
        return ""
    others = ", ".join(f"'{name}' has {part:g}" for name, part in shares.items())
    return (
        f"gpu_memory_utilization {own:g} and that of other models ({others}) exceed 1 in total; models on the same GPU "
        "may run out of memory: reduce it in model.json"
    )


def format_gib(size: int) -> str:
    """Return a number of bytes as text, such as "1.5 GiB"."""
    return f"{size / GIB:.1f} GiB"
