# Compiled by mypyc in wheels.
"""Copy large tensors in slices, so that the event loop is not blocked.

The first write to 60 MB of new memory faults in 15,000 pages, which takes 30 to 300 ms. The copies run on the event
loop's thread, because only that may access shared memory of clients (see `fault_guard`).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic_ns
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from conch.base.errors import ConchError
from conch.domain.tensor import Buffer, Destination, Source

# Smaller tensors are copied in one piece.
MIN_SLICED_BYTES: Final = 4 * 2**20
_SLICE_BYTES: Final = 2**20
# Budget of all copies per iteration of the event loop, which copies at least one slice.
_MAX_TURN_NS: Final = 5_000_000


class SlicedCopy:
    """One copy into `target`, an array of the source's size. `key` identifies it for the caller.

    `error` is set if the source fails; the content of the target is undefined then.
    """

    __slots__ = ("_data", "_position", "_source", "_target", "error", "key")

    def __init__(self, target: npt.NDArray[np.uint8], source: Buffer | Source, key: int = 0) -> None:
        self.key = key
        self.error: ConchError | None = None
        self._target = target
        self._position = 0
        self._source: Source | None = None
        self._data: npt.NDArray[np.uint8] | None = None
        if isinstance(source, (bytes, bytearray, memoryview)):
            self._data = np.frombuffer(source, np.uint8)
        else:
            self._source = source

    def step(self) -> bool:
        """Copy one slice and return whether it was the last."""
        begin = self._position
        end = min(begin + _SLICE_BYTES, len(self._target))
        if self._data is not None:
            self._target[begin:end] = self._data[begin:end]
        elif self._source is not None:
            try:
                self._source.read_into(self._target[begin:end], begin)
            except ConchError as error:
                self.error = error
                return True
        self._position = end
        return end == len(self._target)


class SlicedWrite:
    """One copy to a client's shared memory. `error` is set if it fails."""

    __slots__ = ("_data", "_destination", "_position", "error")

    def __init__(self, destination: Destination, data: Buffer) -> None:
        self.error: ConchError | None = None
        self._destination = destination
        self._data = memoryview(data).cast("B")
        self._position = 0

    def step(self) -> bool:
        """Copy one slice and return whether it was the last."""
        begin = self._position
        self._position = begin + _SLICE_BYTES
        try:
            self._destination.write(self._data[begin : self._position], begin)
        except ConchError as error:
            self.error = error
            return True
        return self._position >= len(self._data)


class CopyJob:
    """A group of copies; `done` is called after the last one, and must not raise."""

    __slots__ = ("copies", "done", "next")

    def __init__(self, copies: Sequence[SlicedCopy | SlicedWrite], done: Callable[[], None]) -> None:
        self.copies = copies
        self.done: Callable[[], None] | None = done
        self.next = 0

    def cancel(self) -> None:
        """Stop copying and do not call `done`."""
        self.done = None
        self.copies = ()

    def step(self) -> bool:
        """Copy one slice and return whether it was the last."""
        if self.next < len(self.copies) and self.copies[self.next].step():
            self.next += 1
        return self.next >= len(self.copies)


class CopyQueue:
    """Round-robin queue of the jobs of one event loop. All methods run on its thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._jobs: deque[CopyJob] = deque()

    def submit(self, copies: Sequence[SlicedCopy | SlicedWrite], done: Callable[[], None]) -> CopyJob:
        """Start copies in the next iteration of the event loop."""
        job = CopyJob(copies, done)
        if not self._jobs:
            self._loop.call_soon(self._turn)
        self._jobs.append(job)
        return job

    def _turn(self) -> None:
        end = monotonic_ns() + _MAX_TURN_NS
        while self._jobs:
            job = self._jobs[0]
            if job.step():
                # Still in the queue while `done` runs, so that a submit in it does not schedule a second `_turn`.
                if job.done is not None:
                    job.done()
                self._jobs.popleft()
            else:
                self._jobs.rotate(-1)
            if monotonic_ns() >= end:
                break
        if self._jobs:
            self._loop.call_soon(self._turn)


_queues: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, CopyQueue]] = WeakKeyDictionary()


def copy_in_slices(copies: Sequence[SlicedCopy | SlicedWrite], done: Callable[[], None]) -> CopyJob:
    """Submit copies to the running event loop's queue."""
    loop = asyncio.get_running_loop()
    queue = _queues.get(loop)
    if queue is None:
        queue = _queues[loop] = CopyQueue(loop)
    return queue.submit(copies, done)
