"""No more requests in one turn of the event loop than leave it time for the answers of models.

When hundreds of clients ask at once, all of them are heard in the same turn. Were all of them served in it, a model
that is done would wait that long for its next batch, and idle while most of those clients are only refused.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable

# About a millisecond's worth of refusals.
_PER_TURN = 32

# How long the data of one connection are parsed in one turn, and how long while others have used up the turn.
_SLICE_S = 0.002
_SHORT_SLICE_S = 0.0002
_SLICES_PER_TURN_S = 0.02
# How long all connections with more to serve than fits their slice are served in one turn.
_POSTPONED_PER_TURN_S = 0.01


class ParseBudget:
    """How long each connection of a listener may parse in a turn of the loop, so that none delays the others.

    `slice_s` is the time for one connection in a turn, `short_slice_s` the time when others have used up the turn.
    """

    def __init__(self, slice_s: float = _SLICE_S, short_slice_s: float = _SHORT_SLICE_S) -> None:
        self._slice_s = slice_s
        self._short_slice_s = short_slice_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turn = 0.0
        self._until = 0.0
        self._postponed: deque[Callable[[], None]] = deque()
        self._scheduled = False  # whether those that are postponed have a turn

    def until(self) -> float:
        """Return the monotonic time at which a connection that begins to parse now has to stop."""
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        now = time.monotonic()
        turn = loop.time()  # of uvloop: does not change within a turn
        if turn != self._turn:
            self._turn = turn
            self._until = now + _SLICES_PER_TURN_S
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
    """Says whether there is time for another request in this turn, and keeps the others, in order, for later ones."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turn = 0.0
        self._left = 0
        self._later: deque[Callable[[], None]] = deque()

    def free(self) -> bool:
        """Take a place in this turn, if there is one and nobody waits for it."""
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        turn = loop.time()  # of uvloop: does not change within a turn
        if turn != self._turn:
            self._turn = turn
            self._left = _PER_TURN
        if not self._left or self._later:
            return False
        self._left -= 1
        return True

    def later(self, serve: Callable[[], None]) -> None:
        """Have `serve`, which must not raise, called in one of the next turns."""
        if not self._later:
            assert self._loop is not None
            self._loop.call_soon(self._go_on)
        self._later.append(serve)

    def _go_on(self) -> None:
        later = self._later
        try:
            for _ in range(min(len(later), _PER_TURN)):
                later.popleft()()
        finally:  # whatever becomes of one, the others have their turn
            if later:
                assert self._loop is not None
                self._loop.call_soon(self._go_on)
