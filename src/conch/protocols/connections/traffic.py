# Compiled by mypyc in wheels.
"""What the connections of a listener share: its clock, and counters of bytes and of refused requests by reason."""

from typing import Final

# The label `reason` of refused requests, by HTTP status. Other errors are not refusals of the server: the request is
# invalid, or a model has failed.
REASONS: Final = {
    401: "unauthenticated",
    403: "forbidden",
    408: "timeout",
    413: "too_large",
    429: "rate_limited",
    431: "too_large",
    503: "unavailable",
}


class SweepClock:
    """A clock that is set once a second, which is cheaper to read than the system's. `now` is monotonic seconds."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 0.0


class Traffic:
    """Bytes received and sent, without those of TLS, and refused requests by reason."""

    __slots__ = ("received_bytes", "refused", "sent_bytes")

    def __init__(self) -> None:
        self.received_bytes = 0
        self.sent_bytes = 0
        self.refused: dict[str, int] = dict.fromkeys(REASONS.values(), 0)

    def count_status(self, status: int) -> None:
        """Count an HTTP status that may be a refusal."""
        reason = REASONS.get(status)
        if reason is not None:
            self.refused[reason] += 1

    def count_refusal(self, reason: str) -> None:
        """Count a refused request; no-op for an empty reason."""
        if reason:
            self.refused[reason] += 1
