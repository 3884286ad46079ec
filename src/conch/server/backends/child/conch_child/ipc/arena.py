"""Shared memory between the server and a model's process: one arena for each direction.

An arena is a `memfd`, an anonymous file in memory, which the kernel frees with the last process that has it open,
however that ends. It needs no space in /dev/shm. Its whole address range is mapped once; memory is allocated page by
page on first write, low addresses first, and returned by `ArenaWriter.trim`. So an arena is never remapped, and its
size limits its memory. Seals forbid both sides to truncate it: a mapped page that is missing would kill the reader by
SIGBUS. A side may still write to what the other reads, or punch holes, which read as zeros; readers must expect that.

The writer allocates blocks and writes each once. The reader uses them in place; when the last view of a block is
deleted, it reports that to the writer with its next frame. Tensors that do not fit travel through the socket in the
frame: slower, but without failure.

A reader may pass a block on to its writer, as an input of another request, without copying it into its own arena: it
lends the block until the writer has released it. The server keeps large responses to a model's calls, and sends only
their numbers: most are passed on. The model may fetch each once.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
import weakref
from bisect import bisect_left
from functools import partial
from itertools import count
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

import numpy as np

from .wire import WireError

ALIGNMENT = 64

# A frame's tensors up to this total size travel in the frame: the copy through the socket costs less than a block.
MAX_INLINE_BYTES = 1 << 16

# Places from here on are lent blocks, at that distance in the receiver's own arena.
LENT = 1 << 52
# Places from here to LENT are numbers of tensors that the server keeps.
KEPT = 1 << 51

_MAX_NAME_BYTES = 249  # of a memfd


def create(name: str, size: int, reserved: int = 0) -> int:
    """Create a sealed arena of `size` bytes and return its file descriptor. It takes no memory until it is written to.

    `reserved` bytes follow for other purposes.

    Raises OSError if this process has too many descriptors open, or may not create files of that size (`ulimit -f`).
    """
    shown = name.encode("ascii", "backslashreplace")[:_MAX_NAME_BYTES].decode()
    descriptor = os.memfd_create(shown, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE + reserved)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


class ArenaWriter:
    """The side that allocates and fills blocks. Safe to use from any thread."""

    def __init__(self, descriptor: int, reserved: int = 0) -> None:
        self._map = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
        self.size = len(self._map) - reserved
        self.reserved = memoryview(self._map)[self.size :]
        self._bytes = np.frombuffer(self._map, np.uint8)
        self._lock = threading.Lock()
        self._blocks: Dict[int, int] = {}
        self._gaps: List[Tuple[int, int]] = [(0, self.size)]  # (offset, size), ascending, never adjacent
        self._high_water = 0
        self._lent: Dict[int, List[Any]] = {}  # place → views of a block of the other arena

    @property
    def used(self) -> int:
        """Allocated bytes."""
        return sum(self._blocks.values())

    @property
    def high_water(self) -> int:
        """The end of the highest block since the last `trim`, up to which memory may be resident."""
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
        """Allocate a block; return its offset and its bytes as an array to fill. None if no gap is large enough."""
        offset = self._allocate(size)
        return None if offset is None else (offset, self._bytes[offset : offset + size])

    def lend(self, offset: int, view: Any) -> int:
        """Keep a view of the other arena's block at `offset` until its place, which is returned, is freed."""
        place = LENT + offset
        with self._lock:
            self._lent.setdefault(place, []).append(view)
        return place

    def free(self, offsets: Iterable[int]) -> None:
        """Free blocks and places of lent ones. Raises WireError for an offset without a block."""
        with self._lock:
            for offset in offsets:
                lent = self._lent.get(offset)
                if lent:
                    lent.pop()
                    if not lent:
                        del self._lent[offset]
                    continue
                size = self._blocks.pop(offset, None)
                if size is None:
                    raise WireError("no block of shared memory begins at offset {}".format(offset))
                self._add_gap(offset, size)

    def discard(self, offsets: Iterable[int]) -> None:
        """Free blocks that were not sent. A reader that has released one of them nevertheless harms only itself."""
        with self._lock:
            for offset in offsets:
                size = self._blocks.pop(offset, None)
                if size is not None:
                    self._add_gap(offset, size)

    def own(self, offset: int, size: int) -> Any:
        """Return a range of the arena as an array of bytes. Raises WireError if it is outside."""
        if offset < 0 or size <= 0 or offset + size > self.size:
            raise WireError("invalid block of shared memory: {} bytes at offset {}".format(size, offset))
        return np.frombuffer(self._map, np.uint8, size, offset)

    def offset_of(self, array: Any) -> Optional[int]:
        """Return the offset of an array in the arena, None if it is not there."""
        offset: int = array.__array_interface__["data"][0] - self._bytes.__array_interface__["data"][0]
        return offset if 0 <= offset < self.size else None

    def trim(self, keep: int) -> None:
        """Return memory above the first `keep` bytes to the system, if no block is allocated."""
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
    """The side that reads blocks. Views may be deleted in any thread."""

    def __init__(self, descriptor: int, on_release: Callable[[], None] = lambda: None, reserved: int = 0) -> None:
        self._map = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
        self.size = len(self._map) - reserved
        self.reserved = memoryview(self._map)[self.size :]
        self.high_water = 0
        self._on_release = on_release
        self._views: Dict[int, Any] = {}
        self._borrowed: Dict[int, Any] = {}  # by numbers
        self._borrowings = count()
        self._released: List[int] = []
        self._address: int = np.frombuffer(self._map, np.uint8).__array_interface__["data"][0]

    @property
    def in_use(self) -> int:
        """Number of blocks with views."""
        return len(self._views)

    def view(self, offset: int, size: int) -> Any:
        """Return a block as an array of bytes. The block is released with the last reference to the array or a view.

        Raises WireError for a range that is invalid or already in use.
        """
        if offset < 0 or size <= 0 or offset + size > self.size or offset in self._views:
            raise WireError("invalid block of shared memory: {} bytes at offset {}".format(size, offset))
        self.high_water = max(self.high_water, offset + size)
        array = np.frombuffer(self._map, np.uint8, size, offset)
        # Arrays and memoryviews derived from this array refer to it, not to the map, so it is deleted last.
        self._views[offset] = weakref.ref(array, partial(self._on_view_dead, offset))
        return array

    def release(self, place: int) -> None:
        """Report a tensor that the server keeps as released. The garbage collector may call it at any point."""
        self._released.append(place)

    def offset_of(self, array: Any) -> Optional[int]:
        """Return the offset of an array in the arena, None if it is not there."""
        offset: int = array.__array_interface__["data"][0] - self._address
        return offset if 0 <= offset < self.size else None

    def borrow(self, place: int, size: int, owner: ArenaWriter) -> Any:
        """Return the block of `owner` that was lent as `place`, which is released as `view` says.

        Raises WireError for a range that is invalid.
        """
        array = owner.own(place - LENT, size)
        number = next(self._borrowings)
        self._borrowed[number] = weakref.ref(array, partial(self._on_borrowed_dead, number, place))
        return array

    def take_released(self) -> Tuple[int, ...]:
        """Return the offsets of the blocks and places that have been released since the last call."""
        if not self._released:
            return ()
        released = tuple(self._released)
        # Offsets that another thread adds meanwhile stay for the next call.
        del self._released[: len(released)]
        return released

    def _on_view_dead(self, offset: int, _: object) -> None:
        # The garbage collector may run it at any point of any thread, so it takes no lock.
        del self._views[offset]
        self._released.append(offset)
        self._on_release()

    def _on_borrowed_dead(self, number: int, place: int, _: object) -> None:
        del self._borrowed[number]
        self._released.append(place)
        self._on_release()


class Parcel:
    """The tensors of one frame: small ones in the frame's payload, large ones in blocks of the arena."""

    __slots__ = ("_arena", "blocks", "copies", "parts", "size")

    def __init__(self, arena: ArenaWriter) -> None:
        self._arena = arena
        self.parts: List[Any] = []
        self.size = 0
        self.blocks: List[int] = []
        # Used by the server: copies into blocks that must complete before the frame is sent.
        self.copies: Optional[List[Any]] = None

    def put(self, data: Any, size: int) -> int:
        """Add `size` bytes and return their place (see `messages`). `data` is a contiguous buffer or an array."""
        if size and self.size + size > MAX_INLINE_BYTES:
            offset = self._arena.write(data, size)
            if offset is not None:
                self.blocks.append(offset)
                return offset
        place = ~self.size
        self.parts.append(data.tobytes() if isinstance(data, np.ndarray) else data)
        self.size += size
        padding = -size % 8  # aligns the arrays that the receiver creates in place
        if padding:
            self.parts.append(bytes(padding))
            self.size += padding
        return place

    def reserve(self, size: int) -> Optional[Tuple[int, Any]]:
        """Allocate a block; return its place and its bytes as an array to fill before the frame is sent.

        None if `put` must be used: for few bytes, or if the arena has no gap that is large enough.
        """
        block = self._arena.reserve(size) if self.size + size > MAX_INLINE_BYTES else None
        if block is not None:
            self.blocks.append(block[0])
        return block

    def fill(self, size: int, write: Callable[[Any], None]) -> Optional[int]:
        """Allocate a block, fill it by `write`, and return its place.

        None where `reserve` returns None. Raises what `write` raises.
        """
        block = self.reserve(size)
        if block is None:
            return None
        write(block[1])
        return block[0]

    def discard(self, kept: int) -> None:
        """Free all blocks except the first `kept`, without sending them."""
        self._arena.discard(self.blocks[kept:])
        del self.blocks[kept:]
