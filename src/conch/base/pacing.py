"""When to try again: exponential back-off. Pure: times are arguments."""

_MAX_DOUBLINGS = 60


def backoff_s(failures: int, first_s: float, max_s: float, jitter: float = 0.0) -> float:
    """Return the delay after consecutive failures: 0 after none, then `first_s`, doubled up to `max_s`.

    `jitter`, a random number from 0 to 1, halves the delay at most: clients of a host that restarts must not reconnect
    in the same moment.
    """
    if failures < 1:
        return 0.0
    return min(first_s * 2.0 ** min(failures - 1, _MAX_DOUBLINGS), max_s) * (1.0 - jitter / 2)
