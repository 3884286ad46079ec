"""The pace that services allow. Pure: times are arguments."""


class SendPace:
    """A token bucket: `burst` messages, refilled at `per_minute`."""

    def __init__(self, burst: int, per_minute: float) -> None:
        self._burst = float(burst)
        self._per_s = per_minute / 60
        self._tokens = self._burst
        self._filled_at = 0.0

    def delay(self, now: float) -> float:
        """Return the seconds until a message may be sent; 0 if it may now. `now` is monotonic."""
        if self._filled_at:
            self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._per_s)
        self._filled_at = now
        return max(1.0 - self._tokens, 0.0) / self._per_s

    def spend(self) -> None:
        """Count a message."""
        self._tokens -= 1.0
