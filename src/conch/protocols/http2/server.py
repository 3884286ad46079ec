"""The HTTP/2 listener: what its connections share, and its orderly shutdown.

It replaces the gRPC library, which takes several times the processor time of everything else that a request needs. It
implements HTTP/2 and nothing of gRPC.
"""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from conch.protocols.connections.listener import SWEEP_S, Listener
from conch.protocols.connections.tls import ReloadedTls
from conch.protocols.connections.traffic import Traffic
from conch.protocols.http2.connection import Http2Connection
from conch.protocols.http2.flow_control import Http2Stream, Receiver
from conch.protocols.http2.frames import ErrorCode
from conch.protocols.http2.header_blocks import RequestHead
from conch.protocols.http2.limits import Http2Limits, PeerResets

Head = TypeVar("Head")

_MIN_SWEEP_S = 0.01
_READ_BYTES = 256 * 1024


class Http2Server(Listener[Http2Connection], Generic[Head]):
    """Serves streams on one address. Life: `start` → `stop`."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        interpret: Callable[[RequestHead], Head],
        accept: Callable[[Head, Http2Stream], Receiver],
        limits: Http2Limits,
        tls: ReloadedTls | None = None,
        reuse_port: bool = False,
        traffic: Traffic | None = None,
        max_unsent_bytes: int | None = None,
    ) -> None:
        """`interpret` turns a request's head into what `accept` needs to open its stream.

        Equal heads are interpreted once. `interpret` may raise StreamFault, `accept` must not raise.
        """
        shortest = min(limits.keepalive_s, limits.keepalive_timeout_s, limits.age_s or SWEEP_S)
        super().__init__(
            host,
            port,
            connections=limits.connections,
            reuse_port=reuse_port,
            tls=tls,
            handshake_s=limits.preface_s,
            sweep_s=min(SWEEP_S, max(_MIN_SWEEP_S, shortest / 2)),
            traffic=traffic,
            max_unsent_bytes=max_unsent_bytes,
        )
        self.interpret = interpret
        self.accept = accept
        self.limits = limits
        self.peer_resets = PeerResets(limits)
        self.read_buffer = memoryview(bytearray(_READ_BYTES))

    def retire_connections(self) -> None:
        """Send GOAWAY on the open connections; they close when their streams have ended."""
        for connection in tuple(self._connections):
            connection.session.drain()

    async def stop(self, grace_s: float) -> None:
        """Accept no more connections, let the open streams end within `grace_s` seconds, then abort them."""
        for connection in await self._close():
            connection.session.refuse_streams()
        await self._wait_until_closed(grace_s)
        for connection in tuple(self._connections):
            connection.session.fail(ErrorCode.NO_ERROR, "the server has stopped")
        await self._wait_until_closed(SWEEP_S)
        await self._abort_connections()

    def _accept(self) -> asyncio.BaseProtocol:
        return Http2Connection(self)
