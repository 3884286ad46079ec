"""Write outputs directly into clients' shared memory, which saves a copy in the server.

The server passes the destinations. An output that cannot be written there goes to the server like any other; the server
retries and reports the failure to the client.
"""

from __future__ import annotations

import mmap
import os
from typing import Any, Dict, Optional, Tuple

import numpy as np

from ..ipc.fault_guard import FaultGuard

# Clients usually reuse few regions. Mapped memory is not freed even if its owner unlinks it, hence few.
_MAX_MAPPED = 8

# File, device, inode, offset of the region in the file, size of the region; see `messages`.
Region = Tuple[str, int, int, int, int]


class RegionWriter:
    """A cache of mapped regions. Not safe for concurrent use."""

    def __init__(self) -> None:
        self._guard = FaultGuard()
        self._mapped: Dict[Region, _Mapping] = {}

    def put(self, place: Tuple[Any, ...], data: Any, size: int) -> bool:
        """Copy `size` bytes, a contiguous buffer or an array, to a destination. Return whether that succeeded."""
        *which, offset, room = place
        region: Region = tuple(which)
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
            intact = self._guard.copy(target, source, mapping.array)
        finally:
            self._guard.remove()
        if not intact:  # anonymous pages have replaced the file's
            del self._mapped[region]
        return intact

    def unmap_all(self) -> None:
        """Unmap all regions."""
        self._mapped.clear()

    def _map(self, region: Region) -> Optional[_Mapping]:
        for unlinked in [unlinked for unlinked, mapping in self._mapped.items() if mapping.unlinked]:
            del self._mapped[unlinked]
        if len(self._mapped) >= _MAX_MAPPED:
            del self._mapped[next(iter(self._mapped))]
        try:
            mapping = _Mapping(region)
        except (OSError, ValueError):
            return None
        self._mapped[region] = mapping
        return mapping


class _Mapping:
    """A mapped region. Raises OSError or ValueError if it cannot be mapped."""

    def __init__(self, region: Region) -> None:
        path, device, inode, offset, size = region
        self._offset = offset
        self._descriptor = -1
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        status = os.fstat(self._descriptor)
        if (status.st_dev, status.st_ino) != (device, inode):
            raise OSError("another file has this name now")
        self.begin = offset % mmap.ALLOCATIONGRANULARITY
        self.array = np.frombuffer(mmap.mmap(self._descriptor, self.begin + size, offset=offset - self.begin), np.uint8)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def has(self, size: int) -> bool:
        """Return whether the file still contains the first `size` bytes of the region."""
        return self._offset + size <= os.fstat(self._descriptor).st_size

    @property
    def unlinked(self) -> bool:
        """Whether the file is deleted."""
        return os.fstat(self._descriptor).st_nlink == 0
