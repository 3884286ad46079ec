"""Decide how long a model's process busy-polls for its next request before it blocks.

Waking a process takes tens of microseconds, a large part of a fast model's latency. A client that sends its requests
one after the other sends the next within that time, so the process busy-polls for it. It does so only after a fast
execution of a single request that also arrived quickly: with many clients the next request is already there, and rare
requests do not justify it. Linux polls likewise before it halts an idle processor (haltpoll).
"""

from __future__ import annotations


class BusyPoll:
    """Decides from the last wait and execution. Times are in nanoseconds; a `limit` of 0 turns busy polling off."""

    __slots__ = ("_limit", "_quick", "_soon")

    def __init__(self, limit: int = 0) -> None:
        self._limit = limit
        self._soon = False
        self._quick = False

    @property
    def time(self) -> int:
        """How long to busy-poll now."""
        return self._limit if self._soon and self._quick else 0

    def waited(self, time: int) -> None:
        """Record how long the last message was waited for."""
        self._soon = time < self._limit

    def executed(self, requests: int, time: int) -> None:
        """Record the time of an execution."""
        self._quick = requests == 1 and time < self._limit
