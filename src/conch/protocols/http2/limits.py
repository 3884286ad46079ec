# Compiled by mypyc in wheels.
"""Limits of HTTP/2 connections, as configured and as announced, and how they are enforced."""

from collections import OrderedDict
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import Final

from conch.base.pacing import TokenBucket
from conch.protocols.http2 import frames

# Addresses whose budgets are kept. Those of the longest ago are dropped: most have been refilled.
_MAX_PEERS: Final = 4096
_SUBNET_BITS: Final = 64


@dataclass(frozen=True, slots=True)
class Http2Limits:
    """Bounds of one connection; `peer_resets` holds for an address. Times are seconds, sizes bytes; 0 s means no limit.

    The windows bound how much is received before it is consumed. The connection's window stays closed while more than
    `held_bytes` belong to unanswered requests and unsent answers. A header list above `header_bytes` is refused; above
    `header_bytes_hard` the connection ends. `preface_s` is the timeout for the preface, `receive_grace_s` plus the size
    at `receive_bytes_per_s` that for a request, `stalled_write_s` that for a client that does not read its answers
    (`stalled_full_s` while more than `held_bytes` are held), `idle_s` that for a connection without streams.

    `keepalive_s` after the last frame came, the server sends a ping, and ends the connection if it is not acknowledged
    within `keepalive_timeout_s`; without streams only if `keepalive_idle` is set, and at most `pings_without_data`
    times between two frames of data (0: any number). A client's own pings must be `ping_interval_s` apart while nothing
    is sent to it; after more than `ping_strikes` violations (0: any number) the connection ends.

    After `age_s` a connection takes no more requests; those in flight get `age_grace_s`.
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
    peer_resets: int = 10_000
    peer_resets_per_s: float = 2000.0
    noise_frames: int = 5000
    noise_frames_per_s: float = 500.0
    small_frames: int = 20_000
    small_frames_per_s: float = 20_000.0
    preface_s: float = 10.0
    receive_grace_s: float = 30.0
    receive_bytes_per_s: int = 1024
    stalled_write_s: float = 300.0
    stalled_full_s: float = 10.0
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
        """Return the SETTINGS that are announced to the client."""
        return {
            frames.MAX_CONCURRENT_STREAMS: self.streams,
            frames.INITIAL_WINDOW_SIZE: self.stream_window,
            frames.MAX_FRAME_SIZE: self.frame_bytes,
            frames.MAX_HEADER_LIST_SIZE: self.header_bytes,
        }


class FrameBudget(TokenBucket):
    """Token bucket of frames that a peer may send in excess."""

    __slots__ = ()

    def spend(self, now: float, what: str, cost: int = 1) -> None:
        """Spend `cost` tokens. Raises ConnectionFault, which names `what`, if there are not enough."""
        if self.take(now, cost) < 0:
            raise frames.ConnectionFault(frames.ErrorCode.ENHANCE_YOUR_CALM, f"too many {what}")


class PeerResets:
    """Budgets of stream resets by the addresses of clients, which a client does not renew by connecting again.

    A proxy's clients share one, so it is that of several connections; so do those of a Unix socket. One of IPv6 is for
    a subnet of 64 bits, whose addresses a client can choose.
    """

    __slots__ = ("_budgets", "_limits")

    def __init__(self, limits: Http2Limits) -> None:
        self._limits = limits
        self._budgets: OrderedDict[str, FrameBudget] = OrderedDict()

    def __len__(self) -> int:
        return len(self._budgets)

    def spend(self, peer: str, now: float) -> None:
        """Count a reset by a client. Raises ConnectionFault if there were too many from its address."""
        key = _subnet(peer) if ":" in peer else peer
        budget = self._budgets.get(key)
        if budget is None:
            limits = self._limits
            budget = self._budgets[key] = FrameBudget(limits.peer_resets, limits.peer_resets_per_s, now)
            if len(self._budgets) > _MAX_PEERS:
                self._budgets.popitem(last=False)
        else:
            self._budgets.move_to_end(key)
        budget.spend(now, "stream resets from one address")


def _subnet(peer: str) -> str:
    address = IPv6Address(peer)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return f"{int(address) >> (128 - _SUBNET_BITS):x}"


class ReceiveWindow:
    """The flow-control window of a connection or a stream for what a client sends."""

    __slots__ = ("_consumed", "_left", "_size")

    def __init__(self, size: int) -> None:
        self._left = size
        self._size = size
        self._consumed = 0  # and not yet given back to the client

    def receive(self, size: int) -> bool:
        """Count received bytes; False if the window does not allow them."""
        self._left -= size
        return self._left >= 0

    def consume(self, size: int) -> int:
        """Count consumed bytes. Returns the increment of WINDOW_UPDATE, 0 until half of the window is consumed."""
        self._consumed += size
        if self._consumed * 2 < self._size:
            return 0
        increment, self._consumed = self._consumed, 0
        self._left += increment
        return increment
