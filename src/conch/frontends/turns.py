"""No more requests in one turn of the event loop than leave it time for the answers of models.

When hundreds of clients ask at once, all of them are heard in the same turn. Were all of them served in it, a model
that is done would wait that long for its next batch, and idle while most of those clients are only refused.
"""

import asyncio
from collections import deque
from collections.abc import Callable

# About a millisecond's worth of refusals.
_PER_TURN = 32


class Turns:
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
