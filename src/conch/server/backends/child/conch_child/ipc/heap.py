"""The memory of a process that serves: garbage is collected less often, freed memory kept, and returned on demand.

Reallocating memory that was returned costs a page fault and zeroing per page: half of the processor time of an image
model that works on two tensors of 5 MB at a time.
"""

from __future__ import annotations

import ctypes
import gc

_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3

# The maxima of glibc's dynamic thresholds, which it does not reach if two tensors are freed together.
_KEEP_BYTES = 64 << 20
_MAX_HEAP_BLOCK_BYTES = 32 << 20


def collect_less_often() -> None:
    """Exclude what exists from garbage collection, and collect cycles less often: requests leave none behind."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


def keep_freed_memory() -> None:
    """Keep up to 64 MiB of freed memory in this process. A no-op with C libraries other than glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, _KEEP_BYTES)
        mallopt(_MMAP_THRESHOLD, _MAX_HEAP_BLOCK_BYTES)


def trim() -> None:
    """Return all freed memory to the system. A no-op with C libraries other than glibc."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
