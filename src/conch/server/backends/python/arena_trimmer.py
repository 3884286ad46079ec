# Compiled by mypyc in wheels.
"""Trims the shared memory of an idle process, and releases the outputs that the server has read."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Final

from conch.server.backends.child.conch_child.ipc.wire import Message
from conch.server.backends.child.conch_child.python import messages
from conch.server.backends.python.tensor_exchange import TensorExchange

# Released outputs are reported with the next batch, or after this time in a message by themselves.
_RELEASE_AFTER_S: Final = 0.005
# An instance that was idle for this time frees the shared memory above its kept size.
_TRIM_AFTER_S: Final = 10.0


class ArenaTrimmer:
    """`send` sends the process a message; `idle` returns whether no request is in flight. Life: `start` → `stop`."""

    def __init__(self, send: Callable[[Message], None], idle: Callable[[], bool], kept_size: int) -> None:
        self._send = send
        self._idle = idle
        self._kept_size = kept_size
        self._loop = asyncio.get_running_loop()
        self._tensors: TensorExchange | None = None
        self._worked_at = 0.0
        self._release_timer: asyncio.TimerHandle | None = None
        self._trim_timer: asyncio.TimerHandle | None = None

    def start(self, tensors: TensorExchange) -> None:
        """Trim these arenas from now on."""
        self._tensors = tensors

    def stop(self) -> None:
        """Stop the timers; the process has exited."""
        self._tensors = None
        for timer in (self._release_timer, self._trim_timer):
            if timer is not None:
                timer.cancel()

    def output_released(self) -> None:
        """Release outputs soon, as the process may reuse one. Called in any thread."""
        if self._release_timer is None and self._tensors is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._arm_release)

    def worked(self) -> None:
        """Release memory later, as the process has finished a batch."""
        self._worked_at = monotonic()
        self._arm_trim()

    def _arm_release(self) -> None:
        if self._release_timer is None and self._tensors is not None:
            self._release_timer = self._loop.call_later(_RELEASE_AFTER_S, self._release)

    def _release(self) -> None:
        self._release_timer = None
        released = self._tensors.outputs.take_released() if self._tensors is not None else ()
        if released:
            self._send((messages.RELEASE, released))

    def _arm_trim(self) -> None:
        tensors = self._tensors
        if self._trim_timer is None and tensors is not None:
            used = max(tensors.inputs.high_water, tensors.outputs.high_water)
            if used > self._kept_size:
                self._trim_timer = self._loop.call_later(_TRIM_AFTER_S, self._trim)

    def _trim(self) -> None:
        self._trim_timer = None
        tensors = self._tensors
        if tensors is not None and self._idle() and monotonic() - self._worked_at >= _TRIM_AFTER_S:
            self._release()
            tensors.inputs.trim(self._kept_size)
            if not tensors.outputs.in_use:
                tensors.outputs.high_water = self._kept_size
            self._send((messages.TRIM,))
        self._arm_trim()
