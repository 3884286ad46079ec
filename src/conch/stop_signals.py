"""Signals that stop the server: the first one gracefully, the second one at once.

Neither depends on the event loop. Python's C-level handler writes the number of a signal to a pipe; a thread reads it,
restores the default action, so that from then on the kernel ends the process, and only then wakes the loop. A loop that
is stuck in a long call cannot keep the second signal from ending the process.
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
# A second signal within this time is the first one again: GNU timeout, for example, sends to the process and its group.
_DUPLICATE_S = 0.02


def stop_signals() -> asyncio.Event:
    """Return an event that the first SIGTERM, SIGINT or SIGHUP sets. Call it in the main thread, in the loop.

    A SIGHUP that the process was started to ignore, as by nohup, stays ignored.
    """
    stopping = asyncio.Event()
    numbers = [each for each in _STOPPING if each != signal.SIGHUP or signal.getsignal(each) != signal.SIG_IGN]
    reader, writer = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(writer, False)
    for number in numbers:
        signal.signal(number, _noticed)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    arguments = (reader, numbers, asyncio.get_running_loop(), stopping)
    threading.Thread(target=_await_signal, args=arguments, name="conch-signals", daemon=True).start()
    return stopping


def _noticed(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: what the C-level handler has written is all that is needed."""


def _await_signal(
    reader: int, numbers: Collection[int], loop: asyncio.AbstractEventLoop, stopping: asyncio.Event
) -> None:
    while os.read(reader, 1)[0] not in numbers:
        pass  # a signal that somebody else handles
    time.sleep(_DUPLICATE_S)
    # Not by the module `signal`, which works in the main thread only, and that may be stuck.
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
    libc.signal.restype = ctypes.c_void_p
    for number in numbers:
        libc.signal(number, None)  # SIG_DFL
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(stopping.set)
