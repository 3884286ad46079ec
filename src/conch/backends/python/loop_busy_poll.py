"""Keeps the event loop awake while the answer of a quick model is due; see `busy_poll` for the model's side of it."""

import asyncio
from time import monotonic_ns


class LoopBusyPoll:
    """Has the loop look for what comes, in place of sleeping, for `limit` nanoseconds at most; 0: never.

    Only after a lone request, so that there is nothing else to do, and if the last answer came within the limit.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int) -> None:
        self._loop = loop
        self._limit = limit
        self._sent = 0
        self._quick = False
        self._until = 0
        self._looking = False

    def sent(self, requests: int) -> None:
        """Hear of so many requests that the process has been sent."""
        self._sent = monotonic_ns()
        if requests == 1 and self._quick:
            self._until = self._sent + self._limit
            if not self._looking:
                self._looking = True
                self._loop.call_soon(self._look)

    def answered(self) -> None:
        """Hear of an answer."""
        self._quick = monotonic_ns() - self._sent < self._limit
        self._until = 0

    def _look(self) -> None:
        # A loop with something to do soon asks what has come, and does not wait for it.
        self._looking = monotonic_ns() < self._until
        if self._looking:
            self._loop.call_soon(self._look)
