# Compiled by mypyc in wheels.
"""One memory budget for request bodies, shared by all connections of a server, HTTP and gRPC alike.

A body is charged from the arrival of its bytes, so that announcing a large one reserves nothing, until the server frees
it. When the budget is exhausted, uploads that make no progress are evicted; if there are none, the request that needs
more is refused.
"""

import time
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

from conch.domain.tensor import Buffer

# The limit where no option sets one.
DEFAULT_LIMIT_BYTES: Final = 2**30
# Complete bodies up to this size are not charged: most requests are small, and each connection has one at most.
UNCHARGED_BYTES: Final = 4096
# From this size a body is charged until its memory is freed, else until it is answered.
_TRACKED_BYTES: Final = 65_536
# An upload that is slower than this may be evicted when another request needs the memory.
_MIN_BYTES_PER_S: Final = 65_536
_WINDOW_S: Final = 2.0
# One eviction frees at least this fraction of the budget (1 / 16): searching for slow uploads takes time.
_EVICTED_SHARE: Final = 16


class BodyBudget:
    """Counts the bytes of request bodies against a limit. Belongs to the event loop's thread."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.refused = 0  # requests that did not fit
        self.evicted = 0  # uploads that were ended because they made no progress
        self._used = 0
        self._uploads: set[BodyUpload] = set()
        self._tracked: dict[int, weakref.ref[Any]] = {}  # by serial number: arrays cannot be hashed
        self._serial = 0
        self._freed: deque[int] = deque()  # appended to by the thread that frees a body

    @property
    def used_bytes(self) -> int:
        """Bytes that are occupied now."""
        freed = self._freed
        while freed:
            self._used -= freed.popleft()
        return self._used

    def charge(self, size: int) -> bool:
        """Charge `size` bytes. Returns False, and counts a refused request, if they do not fit."""
        if self.has_room(size):
            self._used += size
            return True
        self.refused += 1
        return False

    def has_room(self, size: int) -> bool:
        """Whether `size` more bytes fit, if necessary after evicting uploads that make no progress."""
        if self._used + size <= self.limit_bytes or self.used_bytes + size <= self.limit_bytes:
            return True
        if size <= self.limit_bytes:
            self._evict(size)
        return self.used_bytes + size <= self.limit_bytes

    def discharge(self, size: int) -> None:
        """Return bytes that `charge` has charged."""
        self._used -= size

    def upload(self, evict: Callable[[], None]) -> "BodyUpload":
        """Begin to receive a body. `evict` is called at most once, and must drop the body and refuse the request."""
        upload = BodyUpload(self, evict)
        self._uploads.add(upload)
        return upload

    def charge_until_freed(self, body: Buffer) -> Buffer | None:
        """Charge a complete body until its memory is freed. Returns it as a view, None if it does not fit."""
        size = len(body)
        if not self.charge(size):
            return None
        array = np.frombuffer(body, np.uint8)
        self.track(array, size)
        return array.data

    def track(self, array: "np.ndarray[Any, Any]", size: int) -> None:
        """Return `size` charged bytes when the memory of `array` is freed."""
        serial = self._serial
        self._serial = serial + 1
        self._tracked[serial] = weakref.ref(array, partial(self._on_freed, serial, size))

    def remove(self, upload: "BodyUpload") -> None:
        """Remove an upload that is complete or has ended."""
        self._uploads.discard(upload)

    def _on_freed(self, serial: int, size: int, _array: "weakref.ref[Any]") -> None:
        """Discharge a tracked body that is freed. Called in any thread."""
        self._freed.append(size)
        del self._tracked[serial]

    def _evict(self, size: int) -> None:
        """Evict uploads that make no progress, the largest first, until there is room."""
        now = time.monotonic()
        stalled = sorted((upload for upload in self._uploads if upload.stalled(now)), key=_size, reverse=True)
        target = self.limit_bytes - max(size, self.limit_bytes // _EVICTED_SHARE)
        for upload in stalled:
            if self.used_bytes <= target:
                break
            self.evicted += 1
            upload.evict()


class BodyUpload:
    """A request body that is being received, and the bytes charged for it."""

    __slots__ = ("_budget", "_evict", "_last_growth", "_slow", "_window_bytes", "_window_since", "size")

    def __init__(self, budget: BodyBudget, evict: Callable[[], None]) -> None:
        self._budget = budget
        self._evict: Callable[[], None] | None = evict
        self.size = 0
        self._window_since = self._last_growth = time.monotonic()
        self._window_bytes = 0
        self._slow = False  # in the window before this one

    def grow(self, size: int) -> bool:
        """Charge bytes that have arrived. Returns False if they do not fit; the body must be dropped then."""
        if not self._budget.charge(size):
            return False
        if self._evict is None:  # evicted to make room for itself
            self._budget.discharge(size)
            return False
        now = time.monotonic()
        self._roll(now)
        self._last_growth = now
        self._window_bytes += size
        self.size += size
        return True

    def stalled(self, now: float) -> bool:
        """Whether the body arrives too slowly to keep memory that other requests need."""
        self._roll(now)
        return self._slow or now - self._last_growth > _WINDOW_S

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
        """Return what is charged. Later calls are no-ops."""
        size, self.size = self.size, 0
        self._evict = None
        self._budget.discharge(size)
        self._budget.remove(self)

    def evict(self) -> None:
        """Drop the body and refuse the request."""
        evict, self._evict = self._evict, None
        if evict is not None:
            evict()
        self.release()


def _size(upload: BodyUpload) -> int:
    return upload.size
