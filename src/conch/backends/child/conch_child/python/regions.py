"""Memory that clients share with the server: this process writes outputs there itself, which spares a copy.

The server says where a client wants an output. What cannot be put there, for whatever reason, goes to the server as
any other output does: it tries in turn, and knows how to tell the client why that fails.
"""

from __future__ import annotations

import mmap
import os
from typing import Any, Dict, Optional, Tuple

import numpy as np

from ..ipc.fault_guard import FaultGuard

# Clients, as a rule, use the same few again and again. What is mapped cannot be freed, though its owner has gone.
_MOST_MAPPED = 8

# The object's file, its device and inode, where the region begins in it and its size; see `messages`.
Object = Tuple[str, int, int, int, int]


class RegionWriter:
    """The regions that were written to lately. One thread at a time uses it."""

    def __init__(self) -> None:
        self._guard = FaultGuard()
        self._mapped: Dict[Object, _Mapping] = {}

    def put(self, place: Tuple[Any, ...], data: Any, size: int) -> bool:
        """Copy `size` bytes, a contiguous buffer or an array, to a place. Return whether they are there."""
        *which, offset, room = place
        region: Object = tuple(which)
        mapping = self._mapped.get(region) or self._map(region)
        if size > room or mapping is None or not mapping.has(offset + size):
            return False
        target = mapping.array[mapping.begin + offset : mapping.begin + offset + size]
        if isinstance(data, np.ndarray):
            target, source = target.view(data.dtype).reshape(data.shape), data
        else:
            source = np.frombuffer(data, np.uint8)
        self._guard.install()
        try:
            whole = self._guard.copy(target, source, mapping.array)
        finally:
            self._guard.remove()
        if not whole:  # its pages are not the object's any more
            del self._mapped[region]
        return whole

    def forget(self) -> None:
        """Let all regions go."""
        self._mapped.clear()

    def _map(self, region: Object) -> Optional[_Mapping]:
        for known in [known for known, mapping in self._mapped.items() if mapping.unlinked]:
            del self._mapped[known]
        if len(self._mapped) >= _MOST_MAPPED:
            del self._mapped[next(iter(self._mapped))]
        try:
            mapping = _Mapping(region)
        except (OSError, ValueError):
            return None
        self._mapped[region] = mapping
        return mapping


class _Mapping:
    """A region that is mapped. Raises OSError, ValueError where that cannot be."""

    def __init__(self, region: Object) -> None:
        path, device, inode, offset, size = region
        self._offset = offset
        self._descriptor = -1
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        found = os.fstat(self._descriptor)
        if (found.st_dev, found.st_ino) != (device, inode):
            raise OSError("another object has its name by now")
        self.begin = offset % mmap.ALLOCATIONGRANULARITY
        self.array = np.frombuffer(mmap.mmap(self._descriptor, self.begin + size, offset=offset - self.begin), np.uint8)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def has(self, size: int) -> bool:
        """Whether so many bytes of the region are in the object now."""
        return self._offset + size <= os.fstat(self._descriptor).st_size

    @property
    def unlinked(self) -> bool:
        """Whether nobody can open the object any more."""
        return os.fstat(self._descriptor).st_nlink == 0
