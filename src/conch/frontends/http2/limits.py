"""What a client may take of the server over HTTP/2, and what a connection announces."""

from dataclasses import dataclass

from conch.frontends.http2 import frames


@dataclass(frozen=True, slots=True)
class Http2Limits:
    """Bounds of one connection. Times are seconds, sizes bytes; 0 s means for ever.

    The windows say how much may come in before somebody has taken it; that of the connection stays shut while more
    than `held_bytes` of requests are not answered, or of answers not taken. A list of fields above `header_bytes` is
    answered with a refusal; above `header_bytes_hard` the connection ends. `preface_s` is how long a client may take to
    say a first word, `receive_grace_s` and `receive_bytes_per_s` how long for a request, `stalled_write_s` how long it
    may leave unread what it asked for, `idle_s` how long it may ask for nothing.

    `keepalive_s` after the last frame came, a ping asks whether the client is there, and ends the connection if there
    is no answer within `keepalive_timeout_s`; without streams only if `keepalive_idle` says so, and no more than
    `pings_without_data` times between two frames of data (0: any number). A client's own pings must be
    `ping_interval_s` apart while nothing is sent to it; beyond `ping_strikes` (0: any number) it is sent away.

    After `age_s` a connection takes no more requests; those that run get `age_grace_s`.
    """

    connections: int = 16_384
    streams: int = 1000
    stream_window: int = 16 * 2**20
    connection_window: int = 64 * 2**20
    held_bytes: int = 128 * 2**20
    frame_bytes: int = 2**20
    header_bytes: int = 16_384
    header_bytes_hard: int = 65_536
    continuations: int = 64
    resets: int = 1000
    resets_per_s: float = 200.0
    noise_frames: int = 5000
    noise_frames_per_s: float = 500.0
    small_frames: int = 20_000
    small_frames_per_s: float = 20_000.0
    preface_s: float = 10.0
    receive_grace_s: float = 30.0
    receive_bytes_per_s: int = 1024
    stalled_write_s: float = 300.0
    idle_s: float = 0.0
    keepalive_s: float = 7200.0
    keepalive_timeout_s: float = 20.0
    keepalive_idle: bool = False
    pings_without_data: int = 2
    ping_interval_s: float = 300.0
    ping_strikes: int = 2
    age_s: float = 0.0
    age_grace_s: float = 0.0

    def settings(self) -> dict[int, int]:
        """Return what the client is told of them."""
        return {
            frames.MAX_CONCURRENT_STREAMS: self.streams,
            frames.INITIAL_WINDOW_SIZE: self.stream_window,
            frames.MAX_FRAME_SIZE: self.frame_bytes,
            frames.MAX_HEADER_LIST_SIZE: self.header_bytes,
        }


class TokenBucket:
    """A number of misdemeanours that is forgiven at once, and so many more each second."""

    __slots__ = ("_left", "_most", "_per_s", "_since")

    def __init__(self, most: int, per_s: float, now: float) -> None:
        self._left = float(most)
        self._most = float(most)
        self._per_s = per_s
        self._since = now

    def spend(self, now: float, what: str, cost: int = 1) -> None:
        """Count one, or more by what it costs. Raises ConnectionFault if there were too many."""
        self._left = min(self._most, self._left + (now - self._since) * self._per_s) - cost
        self._since = now
        if self._left < 0:
            raise frames.ConnectionFault(frames.ErrorCode.ENHANCE_YOUR_CALM, f"too many {what}")


class ReceiveWindow:
    """How much a client may still send, on a connection or a stream."""

    __slots__ = ("_left", "_size", "_taken")

    def __init__(self, size: int) -> None:
        self._left = size
        self._size = size
        self._taken = 0  # by us, and not yet given back to the client

    def receive(self, size: int) -> bool:
        """Count what came; False if it is more than allowed."""
        self._left -= size
        return self._left >= 0

    def take(self, size: int) -> int:
        """Count what was used up. Returns by how much to open the window: seldom, and then by much."""
        self._taken += size
        if self._taken * 2 < self._size:
            return 0
        increment, self._taken = self._taken, 0
        self._left += increment
        return increment
