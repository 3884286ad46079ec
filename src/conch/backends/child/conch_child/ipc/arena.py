"""Shared memory between the server and a model's process: one arena for each direction.

An arena is a `memfd`: a file without a name that lives in memory and is gone when the last process that has it is
gone, however that ended. Nothing appears in /dev/shm and its size limit does not matter. The arena's whole range of
addresses is mapped at once; memory is taken page by page when first written, low addresses first, and given back by
`ArenaWriter.trim`. So nothing has to grow or be mapped anew, and the size is a bound on what is used.

The writer allocates blocks and writes each once. The reader looks at them in place, and knows that a block is no longer
needed when the last view of it has died: it then tells the writer with its next frame. What does not fit goes through
the socket with the frame itself: slower, but never a failure.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from bisect import bisect_left
from functools import partial
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

import numpy as np

from .wire import WireError

ALIGNMENT = 64

# Tensors up to this size in all travel in the frame: a copy through the socket is cheaper there than bookkeeping.
INLINE_LIMIT = 1 << 16


def create(name: str, size: int) -> int:
    """Make an arena of `size` bytes and return its file descriptor; it costs nothing until it is written to.

    Raises OSError if there is no descriptor left, or if files of this process may not be so large (`ulimit -f`).
    """
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, size)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


class ArenaWriter:
    """The side that fills the blocks. Safe to use from several threads."""

    def __init__(self, descriptor: int) -> None:
        self.size = os.fstat(descriptor).st_size
        self._map = mmap.mmap(descriptor, self.size)
        self._bytes = np.frombuffer(self._map, np.uint8)
        self._lock = threading.Lock()
        self._blocks: Dict[int, int] = {}
        self._gaps: List[Tuple[int, int]] = [(0, self.size)]  # (offset, size), ascending, never adjacent
        self._high_water = 0

    @property
    def used(self) -> int:
        """Bytes in blocks."""
        return sum(self._blocks.values())

    @property
    def high_water(self) -> int:
        """The end of the highest block since the last `trim`: what may be resident."""
        return self._high_water

    def write(self, data: Any, size: int) -> Optional[int]:
        """Copy `size` bytes into a new block and return its offset; None if no gap is large enough.

        `data` is a contiguous buffer, or an array of any layout.
        """
        offset = self._allocate(size)
        if offset is None:
            return None
        target = self._bytes[offset : offset + size]
        if isinstance(data, np.ndarray):
            np.copyto(target.view(data.dtype).reshape(data.shape), data)
        else:
            target[:] = np.frombuffer(data, np.uint8)
        return offset

    def reserve(self, size: int) -> Optional[Tuple[int, Any]]:
        """Return the offset of a new block and the block, to be filled; None if no gap is large enough."""
        offset = self._allocate(size)
        return None if offset is None else (offset, self._bytes[offset : offset + size])

    def free(self, offsets: Iterable[int]) -> None:
        """Make blocks available again. Raises WireError for an offset that is no block's."""
        with self._lock:
            for offset in offsets:
                size = self._blocks.pop(offset, None)
                if size is None:
                    raise WireError("no block of shared memory begins at {}".format(offset))
                self._add_gap(offset, size)

    def trim(self, keep: int) -> None:
        """Return memory above `keep` bytes to the system, if no block is in use."""
        with self._lock:
            start = -(-keep // mmap.PAGESIZE) * mmap.PAGESIZE
            if not self._blocks and start < self._high_water:
                self._map.madvise(mmap.MADV_REMOVE, start, self.size - start)
                self._high_water = keep

    def _allocate(self, size: int) -> Optional[int]:
        size = max(-(-size // ALIGNMENT), 1) * ALIGNMENT
        with self._lock:
            for index, (offset, room) in enumerate(self._gaps):
                if room < size:
                    continue
                if room == size:
                    del self._gaps[index]
                else:
                    self._gaps[index] = (offset + size, room - size)
                self._blocks[offset] = size
                self._high_water = max(self._high_water, offset + size)
                return offset
        return None

    def _add_gap(self, offset: int, size: int) -> None:
        index = bisect_left(self._gaps, (offset, 0))
        if index < len(self._gaps) and self._gaps[index][0] == offset + size:
            size += self._gaps.pop(index)[1]
        if index and sum(self._gaps[index - 1]) == offset:
            index -= 1
            offset, before = self._gaps.pop(index)
            size += before
        self._gaps.insert(index, (offset, size))


class ArenaReader:
    """The side that looks at the blocks. Views may die in any thread."""

    def __init__(self, descriptor: int, on_release: Callable[[], None] = lambda: None) -> None:
        self.size = os.fstat(descriptor).st_size
        self.high_water = 0
        self._map = mmap.mmap(descriptor, self.size)
        self._on_release = on_release
        self._views: Dict[int, Any] = {}
        self._released: List[int] = []

    @property
    def in_use(self) -> int:
        """How many blocks somebody looks at."""
        return len(self._views)

    def view(self, offset: int, size: int) -> Any:
        """Return a block as an array of bytes; it is released when neither it nor any view of it is left.

        Raises WireError if there can be no such block.
        """
        if offset < 0 or size <= 0 or offset + size > self.size or offset in self._views:
            raise WireError("no block of shared memory at {} + {}".format(offset, size))
        self.high_water = max(self.high_water, offset + size)
        array = np.frombuffer(self._map, np.uint8, size, offset)
        # Arrays and memoryviews made from this array refer to it, not to the map below it: it dies last.
        self._views[offset] = weakref.ref(array, partial(self._gone, offset))
        return array

    def take_released(self) -> Tuple[int, ...]:
        """Return the offsets of the blocks that have been released since the last call."""
        if not self._released:
            return ()
        released = tuple(self._released)
        # Those that another thread has added meanwhile stay for the next call.
        del self._released[: len(released)]
        return released

    def _gone(self, offset: int, _: object) -> None:
        # May run in the middle of anything, so it takes no lock.
        del self._views[offset]
        self._released.append(offset)
        self._on_release()


class Parcel:
    """The tensors of one frame: small ones are collected for the frame's payload, large ones go into the arena."""

    __slots__ = ("_arena", "blocks", "copies", "parts", "size")

    def __init__(self, arena: ArenaWriter) -> None:
        self._arena = arena
        self.parts: List[Any] = []
        self.size = 0
        self.blocks: List[int] = []
        # Of the server: copies into blocks that are to end before the frame is sent.
        self.copies: Optional[List[Any]] = None

    def put(self, data: Any, size: int) -> int:
        """Add `size` bytes and return their place (see `messages`). `data` is a contiguous buffer or an array."""
        if self.size + size > INLINE_LIMIT:
            offset = self._arena.write(data, size)
            if offset is not None:
                self.blocks.append(offset)
                return offset
        place = ~self.size
        self.parts.append(data.tobytes() if isinstance(data, np.ndarray) else data)
        self.size += size
        padding = -size % 8  # arrays are made in place on the other side and want to be aligned
        if padding:
            self.parts.append(bytes(padding))
            self.size += padding
        return place

    def reserve(self, size: int) -> Optional[Tuple[int, Any]]:
        """Add a block of the arena and return its place and the block, to be filled before the frame is sent.

        None if so few bytes are to be put by `put`, or so many because there is no room.
        """
        block = self._arena.reserve(size) if self.size + size > INLINE_LIMIT else None
        if block is not None:
            self.blocks.append(block[0])
        return block

    def fill(self, size: int, write: Callable[[Any], None]) -> Optional[int]:
        """Add a block of the arena, have `write` fill it, and return its place.

        None where `reserve` returns None. Raises what `write` raises.
        """
        block = self.reserve(size)
        if block is None:
            return None
        write(block[1])
        return block[0]

    def discard(self, kept: int) -> None:
        """Give blocks back but for the first `kept`: what is in them will not be sent."""
        self._arena.free(self.blocks[kept:])
        del self.blocks[kept:]
