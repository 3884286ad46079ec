# Compiled by mypyc in wheels.
"""Keepalive pings of the server, and the limit for pings of the client."""

from enum import Enum
from typing import Final

from conch.protocols.http2.limits import Http2Limits

# The minimum time between two pings of a client without streams (RFC 1122, 4.2.3.6, as in gRPC).
_MIN_IDLE_INTERVAL_S: Final = 7200.0


class Check(Enum):
    """What to do with a connection."""

    NOTHING = "nothing"
    PING = "ping"
    CLOSE = "close"


class Keepalive:
    """The pings of one connection, both ways. Times are monotonic seconds."""

    __slots__ = ("_limits", "_pinged", "_sent", "_strikes", "_waiting_since")

    def __init__(self, limits: Http2Limits) -> None:
        self._limits = limits
        self._pinged: float | None = None  # when the client's last ping came
        self._strikes = 0
        self._waiting_since: float | None = None  # for the acknowledgement of a ping that was sent
        self._sent = 0  # pings since there last was data to send

    def data_sent(self) -> None:
        """Reset the counts: headers or data were sent since the last call."""
        self._pinged = None
        self._strikes = 0
        self._sent = 0

    def pinged(self, now: float, streams: int) -> bool:
        """Count a client's ping; False if there were too many too soon."""
        limits = self._limits
        interval = limits.ping_interval_s
        if not streams and not limits.keepalive_idle:
            interval = max(interval, _MIN_IDLE_INTERVAL_S)
        early = self._pinged is not None and now < self._pinged + interval
        self._pinged = now
        if early:
            self._strikes += 1
        return not limits.ping_strikes or self._strikes <= limits.ping_strikes

    def acknowledged(self) -> None:
        """Record that the client has acknowledged a ping."""
        self._waiting_since = None

    def check(self, now: float, last_received: float, streams: int) -> Check:
        """Return what to do with a client whose last frame came at `last_received`."""
        limits = self._limits
        if self._waiting_since is not None:
            if last_received > self._waiting_since:
                self._waiting_since = None
            elif now - self._waiting_since > limits.keepalive_timeout_s:
                return Check.CLOSE
            return Check.NOTHING
        if now - last_received < limits.keepalive_s or not (streams or limits.keepalive_idle):
            return Check.NOTHING
        if limits.pings_without_data and self._sent >= limits.pings_without_data:
            return Check.NOTHING
        self._sent += 1
        self._waiting_since = now
        return Check.PING
