"""A one-shot timer of microsecond resolution for the event loop: a Linux timerfd.

`loop.call_later` is too coarse: asyncio's selector rounds up to a millisecond, and uvloop's timers count whole
milliseconds of a cached clock, so that a delay of 100 µs takes either no time or ten times as long.
"""

import asyncio
import ctypes
import os
from collections.abc import Callable
from time import monotonic_ns

_CLOCK_MONOTONIC = 1
_TFD_NONBLOCK = os.O_NONBLOCK
_TFD_CLOEXEC = os.O_CLOEXEC
_TFD_TIMER_ABSTIME = 1
# 146 years: a configured delay may exceed the range of the kernel's clock.
_MAX_AT_NS = 2**62


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class _Itimerspec(ctypes.Structure):
    _fields_ = [("interval", _Timespec), ("value", _Timespec)]


_libc = ctypes.CDLL(None, use_errno=True)


class Timer:
    """Calls `callback` on the loop once `time.monotonic_ns()` has passed the time that it was last set to.

    Life: `start` → `set`, `cancel` → `close`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._fd = -1
        self._at = 0

    @property
    def armed(self) -> bool:
        """Whether it is set and has not fired."""
        return self._at != 0

    def start(self) -> None:
        """Create the descriptor. Raises OSError if there is none left: at the start, so that the load fails."""
        fd = _libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC)
        if fd < 0:
            raise OSError(ctypes.get_errno(), f"timerfd_create: {os.strerror(ctypes.get_errno())}")
        self._fd = fd
        self._loop.add_reader(fd, self._fired)

    def set(self, at: int) -> None:
        """Fire at `at` (monotonic ns), at once if that is past. Replaces a previous setting.

        A no-op once closed.
        """
        if at == self._at or self._fd < 0:
            return
        # All zeros would disarm it.
        seconds, nanoseconds = divmod(min(max(at, 1), _MAX_AT_NS), 1_000_000_000)
        spec = _Itimerspec(_Timespec(0, 0), _Timespec(seconds, nanoseconds))
        if _libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(spec), None) != 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")
        self._at = at

    def cancel(self) -> None:
        """Disarm the timer."""
        if self._at:
            spec = _Itimerspec(_Timespec(0, 0), _Timespec(0, 0))
            _libc.timerfd_settime(self._fd, 0, ctypes.byref(spec), None)
            self._at = 0

    def close(self) -> None:
        """Close the descriptor."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
            self._at = 0

    def _fired(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:  # set again after the loop had seen it ready
            return
        if self._at and monotonic_ns() >= self._at:
            self._at = 0
            self._callback()
