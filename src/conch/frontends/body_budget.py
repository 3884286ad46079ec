"""One memory budget for request bodies, shared by all connections of a server, HTTP and gRPC alike.

A body is charged as its bytes arrive, so that announcing a large one costs nobody else anything, and until the server
has freed it. When the budget is exhausted, uploads that make no progress are evicted; if there are none, the request
that wants more is refused.
"""

import time
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from conch.tensor import Buffer

# Of a budget that nobody has set.
DEFAULT_LIMIT_BYTES = 2**30
# Complete bodies up to this size are not charged: one per connection is small, and most requests are.
UNCHARGED_BYTES = 4096
# From this size a body is charged until its memory is freed, else until it is answered.
_TRACKED_BYTES = 65_536
# An upload that is slower than this may be evicted when another request needs the memory.
_MIN_BYTES_PER_S = 65_536
_WINDOW_S = 2.0
# What one eviction makes room for at least, as a share of the budget: looking for slow uploads takes time.
_EVICTED_SHARE = 16


class BodyBudget:
    """The bytes that request bodies may occupy, and those that they do. Belongs to the event loop's thread."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.refused = 0  # requests that there was no memory for
        self.evicted = 0  # uploads that were ended for want of progress
        self._used = 0
        self._uploads: set[BodyUpload] = set()
        self._tracked: dict[int, weakref.ref[Any]] = {}  # by serial number: arrays cannot be hashed
        self._serial = 0
        self._freed: deque[int] = deque()  # filled by whichever thread frees a body

    @property
    def used_bytes(self) -> int:
        """Bytes that are occupied now."""
        freed = self._freed
        while freed:
            self._used -= freed.popleft()
        return self._used

    def take(self, size: int) -> bool:
        """Charge `size` bytes. Returns False, and counts a refused request, if they do not fit."""
        if self.has_room(size):
            self._used += size
            return True
        self.refused += 1
        return False

    def has_room(self, size: int) -> bool:
        """Whether `size` more bytes fit, if need be after evicting uploads that make no progress."""
        if self._used + size <= self.limit_bytes or self.used_bytes + size <= self.limit_bytes:
            return True
        if size <= self.limit_bytes:
            self._evict(size)
        return self.used_bytes + size <= self.limit_bytes

    def give(self, size: int) -> None:
        """Return bytes that `take` has charged."""
        self._used -= size

    def upload(self, evict: Callable[[], None]) -> "BodyUpload":
        """Begin to receive a body. `evict` is called at most once, and must drop the body and refuse the request."""
        upload = BodyUpload(self, evict)
        self._uploads.add(upload)
        return upload

    def keep(self, body: Buffer) -> Buffer | None:
        """Charge a complete body until its memory is freed. Returns it as a view, None if it does not fit."""
        size = len(body)
        if not self.take(size):
            return None
        array = np.frombuffer(body, np.uint8)
        self.track(array, size)
        return array.data

    def track(self, array: "np.ndarray[Any, Any]", size: int) -> None:
        """Return `size` charged bytes when the memory of `array` is freed."""
        serial = self._serial
        self._serial = serial + 1
        self._tracked[serial] = weakref.ref(array, partial(self._on_freed, serial, size))

    def forget(self, upload: "BodyUpload") -> None:
        """Note that an upload is complete or over."""
        self._uploads.discard(upload)

    def _on_freed(self, serial: int, size: int, _array: "weakref.ref[Any]") -> None:
        """Note that a tracked body is freed. Called in any thread."""
        self._freed.append(size)
        del self._tracked[serial]

    def _evict(self, size: int) -> None:
        """Evict uploads that make no progress, the largest first, until there is room."""
        now = time.monotonic()
        stalled = sorted((one for one in self._uploads if one.stalled(now)), key=_size, reverse=True)
        target = self.limit_bytes - max(size, self.limit_bytes // _EVICTED_SHARE)
        for upload in stalled:
            if self.used_bytes <= target:
                break
            self.evicted += 1
            upload.evict()


class BodyUpload:
    """A request body that is being received, and what it is charged."""

    __slots__ = ("_budget", "_evict", "_grown", "_slow", "_window_bytes", "_window_since", "size")

    def __init__(self, budget: BodyBudget, evict: Callable[[], None]) -> None:
        self._budget = budget
        self._evict: Callable[[], None] | None = evict
        self.size = 0
        self._window_since = self._grown = time.monotonic()
        self._window_bytes = 0
        self._slow = False  # in the window before this one

    def grow(self, size: int) -> bool:
        """Charge bytes that have arrived. Returns False if they do not fit; the body must be dropped then."""
        if not self._budget.take(size):
            return False
        if self._evict is None:  # to make room for itself
            self._budget.give(size)
            return False
        now = time.monotonic()
        self._roll(now)
        self._grown = now
        self._window_bytes += size
        self.size += size
        return True

    def stalled(self, now: float) -> bool:
        """Whether the body arrives too slowly to keep memory that others need."""
        self._roll(now)
        return self._slow or now - self._grown > _WINDOW_S

    def _roll(self, now: float) -> None:
        """Begin another window when this one is over."""
        elapsed_s = now - self._window_since
        if elapsed_s > _WINDOW_S:
            self._slow = self._window_bytes < _MIN_BYTES_PER_S * elapsed_s
            self._window_since = now
            self._window_bytes = 0

    def finish(self, body: Buffer) -> Buffer:
        """Return the complete body, which stays charged until its memory is freed if it is large."""
        size = self.size
        if size > _TRACKED_BYTES:
            array: Any = body.obj if isinstance(body, memoryview) else None
            if not isinstance(array, np.ndarray):
                array = np.frombuffer(body, np.uint8)
                body = memoryview(array)
            self.size = 0
            self._budget.track(array, size)
        self.release()
        return body

    def release(self) -> None:
        """Return what is charged. Does nothing the second time."""
        size, self.size = self.size, 0
        self._evict = None
        self._budget.give(size)
        self._budget.forget(self)

    def evict(self) -> None:
        """Drop the body and refuse the request."""
        evict, self._evict = self._evict, None
        if evict is not None:
            evict()
        self.release()


def _size(upload: BodyUpload) -> int:
    return upload.size
