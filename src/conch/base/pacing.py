# Compiled by mypyc in wheels.
"""When to try again, how often and how slowly: back-off, token bucket, minimum rate. Pure: times are arguments."""

from typing import Final

_MAX_DOUBLINGS: Final = 60


def backoff_s(failures: int, first_s: float, max_s: float, jitter: float = 0.0) -> float:
    """Return the delay after consecutive failures: 0 after none, then `first_s`, doubled up to `max_s`.

    `jitter`, a random number from 0 to 1, halves the delay at most: clients of a host that restarts must not reconnect
    in the same moment.
    """
    if failures < 1:
        return 0.0
    return min(first_s * 2.0 ** min(failures - 1, _MAX_DOUBLINGS), max_s) * (1.0 - jitter / 2)


class TokenBucket:
    """`burst` events at once, refilled at `per_s`. Times are seconds of one monotonic clock."""

    __slots__ = ("_burst", "_left", "_per_s", "_since")

    def __init__(self, burst: float, per_s: float, now: float) -> None:
        self._left = float(burst)
        self._burst = float(burst)
        self._per_s = per_s
        self._since = now

    def take(self, now: float, cost: float) -> float:
        """Take tokens and return how many are left; negative, if there were not enough."""
        self._left = min(self._burst, self._left + (now - self._since) * self._per_s) - cost
        self._since = now
        return self._left

    def delay_s(self, now: float) -> float:
        """Return the seconds until one event is allowed, 0 if it is now."""
        return max(1.0 - self.take(now, 0.0), 0.0) / self._per_s


class MinimumRate:
    """The rate at which a body of any size must come; like curl's --speed-limit and --speed-time.

    Each wait for bytes has a separate time limit, but a server may send one byte within each.
    """

    __slots__ = ("_bytes", "_per_s", "_waited_s", "_window_s")

    def __init__(self, per_s: float, window_s: float) -> None:
        self._per_s = per_s
        self._window_s = window_s
        self._waited_s = 0.0
        self._bytes = 0

    def shortfall(self, size: int, waited_s: float) -> str:
        """Count bytes that came after a wait. Returns the reason if a window of waiting brought too few, else ""."""
        self._bytes += size
        self._waited_s += waited_s
        if self._waited_s < self._window_s:
            return ""
        received, waited_s = self._bytes, self._waited_s
        self._bytes, self._waited_s = 0, 0.0
        if received >= self._per_s * waited_s:
            return ""
        return f"too slow: {received} bytes in {waited_s:.0f} s, the minimum is {self._per_s:.0f} bytes a second"
