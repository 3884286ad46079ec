"""Exponential back-off with jitter."""

from collections.abc import Callable


class JitteredBackoff:
    """Doubles from a minimum to a maximum; each delay is multiplied by a random factor of 0.5 to 1.

    Without jitter, all tunnels to a host that restarts would reconnect in the same moment.
    """

    def __init__(self, min_s: float, max_s: float, random: Callable[[], float]) -> None:
        """Assign. `random` returns numbers from 0 to 1."""
        self._min_s = min_s
        self._max_s = max_s
        self._random = random
        self._failures = 0

    def next_s(self, *, slowly: bool = False) -> float:
        """Return the seconds to wait after one more failure; `slowly`: the maximum."""
        delay = self._max_s if slowly else min(self._min_s * 2.0 ** min(self._failures, 32), self._max_s)
        self._failures += 1
        return delay * (0.5 + self._random() / 2)

    def reset(self) -> None:
        """Begin with the minimum again."""
        self._failures = 0
