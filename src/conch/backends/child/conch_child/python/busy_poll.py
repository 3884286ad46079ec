"""How long a model's process looks for its next request before it sleeps.

To be woken takes tens of microseconds, a large part of what a quick model's answer takes. A client that asks one thing
after the other sends its next request that soon after the last answer; for such a one the process stays awake. It does
so only after a quick execution of a lone request that had come soon itself: many clients leave nothing to wait for,
and rare requests are not worth it. The kernel polls in this way before it halts an idle processor (haltpoll).
"""

from __future__ import annotations


class BusyPoll:
    """Decides by what happened last. Times are nanoseconds; a `limit` of 0 means never."""

    __slots__ = ("_limit", "_quick", "_soon")

    def __init__(self, limit: int = 0) -> None:
        self._limit = limit
        self._soon = False
        self._quick = False

    @property
    def time(self) -> int:
        """How long to look now."""
        return self._limit if self._soon and self._quick else 0

    def waited(self, time: int) -> None:
        """Hear how long the next message was in coming."""
        self._soon = time < self._limit

    def executed(self, requests: int, time: int) -> None:
        """Hear of an execution of so many requests."""
        self._quick = requests == 1 and time < self._limit
