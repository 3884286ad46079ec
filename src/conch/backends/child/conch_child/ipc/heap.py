"""What the C library does with freed memory: keeps it for the next request, or gives it back to the system.

Memory that was given back must be taken anew, page by page, each with a page fault and zeroed: for an image model that
works on two tensors of 5 MB at a time, that was half of its processor time.
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3

# Where glibc's own thresholds end after they have followed the sizes that a process frees. It stays far below if two
# tensors are freed at once.
_KEPT_BYTES = 64 << 20
_LARGEST_IN_HEAP = 32 << 20


def keep_freed_memory() -> None:
    """Let up to 64 MiB of freed memory stay with this process. Does nothing where the C library knows no such thing."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_MMAP_THRESHOLD, _LARGEST_IN_HEAP)


def give_back() -> None:
    """Return all freed memory to the system."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
