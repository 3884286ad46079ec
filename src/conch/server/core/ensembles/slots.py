"""`max_inflight_requests`: a bound on the requests in flight at each step of an ensemble.

As in Triton the bound holds for each step, over all requests of the ensemble. A model that sends responses cannot be
paused, so what it sends faster than the next step processes waits here, first in, first out.
"""

from collections import deque
from collections.abc import Callable


class StepSlots:
    """The slots of one step. A run that takes one gives it back when the step has ended."""

    def __init__(self, number: int) -> None:
        self._free = number
        self._waiting: deque[tuple[object, Callable[[], None]]] = deque()
        self._starting = False

    def __repr__(self) -> str:
        return f"<StepSlots {self._free} free, {len(self._waiting)} waiting>"

    def take(self, owner: object, start: Callable[[], None]) -> None:
        """Call `start` when a slot is free, at once or after the earlier waiters."""
        self._waiting.append((owner, start))
        self._start()

    def give_back(self) -> None:
        """Return a slot."""
        self._free += 1
        self._start()

    def forget(self, owner: object) -> None:
        """Remove the waiters of an owner."""
        self._waiting = deque(entry for entry in self._waiting if entry[0] is not owner)

    def _start(self) -> None:
        # Re-entrant: a step that is started may end at once and return its slot; the loop below takes the next one.
        if self._starting:
            return
        self._starting = True
        try:
            while self._free and self._waiting:
                self._free -= 1
                self._waiting.popleft()[1]()
        finally:
            self._starting = False
