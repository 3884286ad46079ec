"""`max_inflight_requests`: how many requests of an ensemble may be under way at one of its steps.

As in Triton the limit is a step's, over all requests of the ensemble. A model that has begun to send responses cannot
be stopped, so what it sends faster than the next step takes waits here, in the order in which it came.
"""

from collections import deque
from collections.abc import Callable


class StepSlots:
    """The places of one step. Whoever takes one gives it back when its step has ended."""

    def __init__(self, number: int) -> None:
        self._free = number
        self._waiting: deque[tuple[object, Callable[[], None]]] = deque()
        self._starting = False

    def __repr__(self) -> str:
        return f"<StepSlots {self._free} free, {len(self._waiting)} waiting>"

    def take(self, owner: object, start: Callable[[], None]) -> None:
        """Call `start` when there is a place for it, at once or after those that have asked before."""
        self._waiting.append((owner, start))
        self._start()

    def give_back(self) -> None:
        """Return a place."""
        self._free += 1
        self._start()

    def forget(self, owner: object) -> None:
        """Drop what an owner still waits for."""
        self._waiting = deque(entry for entry in self._waiting if entry[0] is not owner)

    def _start(self) -> None:
        # What is started may end at once and come back in here: the loop that runs already goes on with the next.
        if self._starting:
            return
        self._starting = True
        try:
            while self._free and self._waiting:
                self._free -= 1
                self._waiting.popleft()[1]()
        finally:
            self._starting = False
