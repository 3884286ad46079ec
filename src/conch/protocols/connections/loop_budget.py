# Compiled by mypyc in wheels.
"""Budgets for one turn of the event loop: requests that are admitted, and time for parsing.

When hundreds of clients send requests at once, all of them arrive in the same turn. If all were served in it, a model
that has finished its batch would idle that long before it gets the next one.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

# About a millisecond's worth of refusals.
_MAX_REQUESTS_PER_TURN: Final = 32

# How long the data of one connection are parsed in one turn, and how long while others have used up the turn.
SLICE_S: Final = 0.002
_SHORT_SLICE_S: Final = 0.0002
_FULL_SLICES_PER_TURN_S: Final = 0.004
# How long all connections with more to serve than fits their slice are served in one turn.
_POSTPONED_PER_TURN_S: Final = 0.003
# Calls before the end of a turn is awaited.
_CALLS_TO_ARM: Final = 8


class _Turn:
    """Detects the end of a turn by a callback, since the loop's clock may move within one.

    A callback costs the loop an iteration, too much for a lone request, so only one of several calls arms it.
    """

    def __init__(self) -> None:
        self.armed = False
        self._calls = 0

    def begin(self) -> bool:
        """Count a call; True if it arms: `armed` is set until the turn ends."""
        self._calls += 1
        if self._calls < _CALLS_TO_ARM:
            return False
        self._calls = 0
        self.armed = True
        asyncio.get_running_loop().call_soon(self._end)
        return True

    def _end(self) -> None:
        self.armed = False


class ParseBudget:
    """Bounds the time for which each connection of a listener parses in one turn, so that none delays the others.

    `slice_s` is the time for one connection in a turn, `short_slice_s` the time when others have used up the turn.
    """

    def __init__(self, slice_s: float = SLICE_S, short_slice_s: float = _SHORT_SLICE_S) -> None:
        self._slice_s = slice_s
        self._short_slice_s = short_slice_s
        self._turn = _Turn()
        self._until = 0.0
        self._postponed: deque[Callable[[], None]] = deque()
        self._scheduled = False  # whether a turn for the postponed callbacks is scheduled

    def until(self) -> float:
        """Return the monotonic time at which a connection that begins to parse now must stop."""
        now = time.monotonic()
        if not self._turn.armed:
            if self._turn.begin():
                self._until = now + _FULL_SLICES_PER_TURN_S
            return now + self._slice_s
        return now + (self._slice_s if now < self._until else self._short_slice_s)

    def postpone(self, serve: Callable[[], None]) -> None:
        """Call `serve`, which must not raise, in one of the next turns, for one slice; it may postpone itself again."""
        self._postponed.append(serve)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._serve_postponed)

    def _serve_postponed(self) -> None:
        """Serve in the order of postponing, each at most once in a turn."""
        postponed = self._postponed
        until = time.monotonic() + _POSTPONED_PER_TURN_S
        left = len(postponed)
        try:
            while left and time.monotonic() < until:
                left -= 1
                postponed.popleft()()
        finally:
            self._scheduled = bool(postponed)
            if postponed:
                asyncio.get_running_loop().call_soon(self._serve_postponed)


class LoopBudget:
    """Bounds the number of requests in one turn; postponed ones are served in order in later turns."""

    def __init__(self) -> None:
        self._turn = _Turn()
        self._remaining = 0
        self._postponed: deque[Callable[[], None]] = deque()

    def acquire(self) -> bool:
        """Reserve a place in this turn; False if none is left, or other requests wait for one."""
        if self._postponed:
            return False
        if not self._turn.armed:
            if self._turn.begin():
                self._remaining = _MAX_REQUESTS_PER_TURN
            return True
        if not self._remaining:
            return False
        self._remaining -= 1
        return True

    def postpone(self, serve: Callable[[], None]) -> None:
        """Call `serve`, which must not raise, in one of the next turns."""
        if not self._postponed:
            asyncio.get_running_loop().call_soon(self._resume)
        self._postponed.append(serve)

    def _resume(self) -> None:
        postponed = self._postponed
        try:
            for _ in range(min(len(postponed), _MAX_REQUESTS_PER_TURN)):
                postponed.popleft()()
        finally:  # an error of one must not lose the others
            if postponed:
                asyncio.get_running_loop().call_soon(self._resume)
