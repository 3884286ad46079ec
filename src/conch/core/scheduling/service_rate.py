"""How fast a queue has been served of late, so that who is refused can be told when to come back."""

# A measurement covers at least this long and this many, and is dropped when nobody was refused for a while: what
# happened between two rushes says nothing about either.
_WINDOW_NS = 1_000_000_000
_WINDOW_NUMBER = 10
_RUSH_NS = 10_000_000_000


class ServiceRate:
    """Counts what leaves a queue. It is measured only while requests are refused, so otherwise it costs an addition."""

    __slots__ = ("_asked", "_per_ns", "_since", "_taken_then", "taken")

    def __init__(self) -> None:
        self.taken = 0
        self._taken_then = 0
        self._since = 0
        self._asked = -_RUSH_NS
        self._per_ns = 0.0

    def __repr__(self) -> str:
        return f"<ServiceRate {self._per_ns * 1e9:.1f} a second>"

    def seconds_for(self, number: int, now: int) -> float | None:
        """Return how long it takes to serve so many, by what was served lately; None if that is not known yet.

        `now` is monotonic ns.
        """
        if now - self._asked >= _RUSH_NS:
            self._taken_then, self._since, self._per_ns = self.taken, now, 0.0
        self._asked = now
        taken, elapsed = self.taken - self._taken_then, now - self._since
        per_ns = self._per_ns
        if elapsed >= _WINDOW_NS and taken >= _WINDOW_NUMBER:
            per_ns = self._per_ns = taken / elapsed
            self._taken_then, self._since = self.taken, now
        elif not per_ns and elapsed:
            per_ns = taken / elapsed
        return number / per_ns / 1e9 if per_ns else None
