"""How large a KV cache is made, by what the server says of the memory that there is.

*offer* is `free`, the bytes that are free and that no other engine was promised, `capacity`, those that all engines
together can have, `promised`, what others have not taken yet, and `gpu_shares`, what others have of a GPU's memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .driver import Refused

GIB = 1 << 30
# Of the memory that engines can have, and of what is left of it beside the weights.
_SHARE, _OF_THE_REST = 0.25, 0.5
_LARGEST = 16 * GIB


def share(offer: Mapping[str, Any], weights: int, least: int) -> tuple[int, str]:
    """Return the bytes of a cache that nobody has sized, and the reason. Raises Refused if `least` is too much."""
    check_fit(offer, weights, least)
    rest = offer["free"] - weights
    size = max(least, min(_LARGEST, int(offer["capacity"] * _SHARE), int(rest * _OF_THE_REST)))
    return size, f"engines can have {in_gib(offer['capacity'])}, of which {in_gib(rest)} are left beside the weights"


def check_fit(offer: Mapping[str, Any], weights: int, cache: int) -> None:
    """Raise Refused if a model's weights and its cache are more than there is."""
    if weights + cache <= offer["free"]:
        return
    promised = ", ".join(f"{in_gib(size)} to '{name}'" for name, size in offer["promised"].items())
    raise Refused(
        f"not enough memory: the weights take {in_gib(weights)} and the KV cache {in_gib(cache)} at least, and "
        f"{in_gib(offer['free'])} are free" + (f" beside what is promised: {promised}" if promised else "")
    )


def overbooked(offer: Mapping[str, Any], own: float) -> str:
    """Return what is to be said if engines have asked for more than all of a GPU's memory; "" if they have not."""
    shares = offer["gpu_shares"]
    if own + sum(shares.values()) <= 1:
        return ""
    others = ", ".join(f"'{name}' has {part:g}" for name, part in shares.items())
    return (
        f"gpu_memory_utilization {own:g} and that of others, {others}, are more than 1: if they share a GPU, one of "
        "them finds too little memory; model.json sets it"
    )


def in_gib(size: int) -> str:
    """Write a number of bytes."""
    return f"{size / GIB:.1f} GiB"
