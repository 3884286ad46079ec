"""Whether a batch runs alone with all threads of an instance, or beside other batches with fewer threads each.

Threads that share one run wait for each other at every operator; concurrent runs do not, but each takes longer. So a
batch runs alone while requests come one after the other, and in a lane once several are there at a time, or while
other work takes the cores.
"""

from typing import Final

# After this many batches in a row without company, the next one runs alone again.
_SOLITARY_BATCHES: Final = 4


class Lanes:
    """Chooses for the batches of one instance. Life of each batch: `begin` → `end`."""

    def __init__(self, lanes: int = 1, break_even: int = 2, patience: float = 1.0) -> None:
        """Choose from `lanes` concurrent runs, which pay from `break_even` concurrent requests on.

        They also pay where the threads of a run wait for the cores for more than the share `patience` of its time.
        """
        self.number: Final = lanes
        self._break_even = break_even
        self._patience = patience
        self._running = 0
        self._alone = False  # whether the running batch has all threads
        self._crowded = 0  # how many further batches run in lanes
        self._ended = 0

    def takes(self, held: int) -> bool:
        """Return whether another batch can begin besides `held` running ones."""
        return held == 0 or (held < self.number and not self._alone)

    def begin(self, size: int, waiting: int, queued: int) -> bool:
        """Return whether a batch runs alone.

        It has `size` requests, of which the first was queued at `queued` (monotonic ns; 0 if it was not). `waiting`
        requests are left in the queue.
        """
        waited = 0 < queued < self._ended
        if self._running + 1 + waiting + waited >= self._break_even:
            self._crowded = _SOLITARY_BATCHES
        elif self._crowded:
            self._crowded -= 1
        # Several requests that come while no other batch runs are divided between the cores instead.
        self._alone = not self._running and (size > 1 or not self._crowded or self.number == 1)
        self._running += 1
        return self._alone

    def end(self, now: int, waited: float) -> None:
        """Note the end of a batch at `now` (monotonic ns), whose thread waited for a core for the share `waited`."""
        self._running -= 1
        self._alone = False
        self._ended = now
        if waited > self._patience:
            self._crowded = _SOLITARY_BATCHES
