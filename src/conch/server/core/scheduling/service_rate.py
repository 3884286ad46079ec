# Compiled by mypyc in wheels.
"""The rate at which a queue is served, which the Retry-After of rejected requests is computed from."""

# The least that one measurement covers.
_MIN_WINDOW_NS = 1_000_000_000
_MIN_WINDOW_REQUESTS = 10
# Without rejections for this long, the measurement starts again: what happened between two overloads says nothing
# about either.
_MAX_GAP_NS = 10_000_000_000


class ServiceRate:
    """Counts requests that leave a queue. Measures only while requests are rejected; otherwise it costs an addition."""

    __slots__ = ("_last_use", "_per_ns", "_since", "_taken_before", "taken")

    def __init__(self) -> None:
        self.taken = 0
        self._taken_before = 0
        self._since = 0
        self._last_use = -_MAX_GAP_NS
        self._per_ns = 0.0

    def __repr__(self) -> str:
        return f"<ServiceRate {self._per_ns * 1e9:.1f} a second>"

    def seconds_for(self, number: int, now: int) -> float | None:
        """Return the time in seconds to serve `number` requests at the recent rate; None if that is not known yet.

        `now` is monotonic ns.
        """
        if now - self._last_use >= _MAX_GAP_NS:
            self._taken_before, self._since, self._per_ns = self.taken, now, 0.0
        self._last_use = now
        taken, elapsed = self.taken - self._taken_before, now - self._since
        per_ns = self._per_ns
        if elapsed >= _MIN_WINDOW_NS and taken >= _MIN_WINDOW_REQUESTS:
            per_ns = self._per_ns = taken / elapsed
            self._taken_before, self._since = self.taken, now
        elif not per_ns and elapsed:
            per_ns = taken / elapsed
        return number / per_ns / 1e9 if per_ns else None
