# Compiled by mypyc in wheels.
"""Busy polling in the event loop while the answer of a fast model is due; see `busy_poll` for the model's side."""

import asyncio
from time import monotonic_ns


class LoopBusyPoll:
    """Keeps the loop polling instead of sleeping for up to `limit` nanoseconds; 0 turns it off.

    Only after a lone request, so that the loop has nothing else to do, and if the last answer came within the limit.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int) -> None:
        self._loop = loop
        self._limit = limit
        self._sent = 0
        self._fast = False
        self._until = 0
        self._polling = False

    def sent(self, requests: int) -> None:
        """Note that `requests` were sent to the process, and poll for the answer of a lone one."""
        self._sent = monotonic_ns()
        if requests == 1 and self._fast:
            self._until = self._sent + self._limit
            if not self._polling:
                self._polling = True
                self._loop.call_soon(self._poll)

    def answered(self) -> None:
        """Note that the answer has come, and stop polling."""
        self._fast = monotonic_ns() - self._sent < self._limit
        self._until = 0

    def _poll(self) -> None:
        # A loop with a callback due polls its descriptors without blocking.
        self._polling = monotonic_ns() < self._until
        if self._polling:
            self._loop.call_soon(self._poll)
