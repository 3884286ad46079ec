"""Signals that stop the server: the first one gracefully, the second one immediately.

The second signal works even if the event loop is blocked. Python's C-level handler writes the number of a signal to a
pipe. A thread reads it, restores the default action of the signals, and only then wakes the loop.
"""

import asyncio
import ctypes
import os
import signal
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from types import FrameType

_STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# A second signal within this time is a duplicate: GNU timeout, for example, signals both the process and its group.
_DUPLICATE_S = 0.02


def stop_signals() -> asyncio.Event:
    """Return an event that the first SIGTERM, SIGINT or SIGHUP sets. To be called in the main thread, in the loop.

    A SIGHUP that was ignored when the process started, as with nohup, stays ignored.
    """
    stopping = asyncio.Event()
    numbers = [number for number in _STOPPING if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]
    reader, writer = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(writer, False)
    for number in numbers:
        signal.signal(number, _no_op)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    arguments = (reader, numbers, asyncio.get_running_loop(), stopping)
    threading.Thread(target=_await_signal, args=arguments, name="conch-signals", daemon=True).start()
    return stopping


def _no_op(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the C-level handler has already written to the pipe."""


def _await_signal(
    reader: int, numbers: Collection[int], loop: asyncio.AbstractEventLoop, stopping: asyncio.Event
) -> None:
    while os.read(reader, 1)[0] not in numbers:
        pass  # a signal with another handler
    time.sleep(_DUPLICATE_S)
    # The module `signal` works in the main thread only, which may be blocked.
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
    libc.signal.restype = ctypes.c_void_p
    for number in numbers:
        libc.signal(number, None)  # SIG_DFL
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(stopping.set)
