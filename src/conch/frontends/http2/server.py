"""The HTTP/2 listener: accepts connections, keeps their number and their patience in bounds, stops in order.

A listener of our own, since the library for gRPC costs several times the processor time of everything that a request
needs besides. It knows HTTP/2 and nothing of gRPC.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from typing import Generic, TypeVar

from conch.frontends.descriptors import affordable_connections
from conch.frontends.http2.connection import Http2Connection
from conch.frontends.http2.frames import ErrorCode
from conch.frontends.http2.headers import RequestHead
from conch.frontends.http2.limits import Http2Limits
from conch.frontends.http2.stream import Http2Stream, Receiver

Head = TypeVar("Head")

_SWEEP_S = 1.0
_LEAST_SWEEP_S = 0.01
_BACKLOG = 1024
_READ_BYTES = 256 * 1024


class Http2Server(Generic[Head]):
    """Serves streams on one address. Life: `start` → `stop`."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        interpret: Callable[[RequestHead], Head],
        accept: Callable[[Head, Http2Stream], Receiver],
        limits: Http2Limits,
        tls: ssl.SSLContext | None = None,
        reuse_port: bool = False,
    ) -> None:
        """Assign. `interpret` makes of a request's head what `accept` needs to open its stream.

        Equal heads are interpreted once. `interpret` may raise StreamFault, `accept` must not raise.
        """
        self.interpret = interpret
        self.accept = accept
        self.limits = limits
        self._most_connections = limits.connections
        self.now = 0.0
        self.read_buffer = memoryview(bytearray(_READ_BYTES))
        self._host = host
        self._port = port
        self._tls = tls
        self._reuse_port = reuse_port
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._connections: set[Http2Connection] = set()
        self._all_closed = asyncio.Event()

    @property
    def port(self) -> int:
        """The port that is listened on, known from `start` on if the system was to choose it."""
        return self._port

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._connections)

    async def start(self) -> None:
        """Listen. Raises OSError if the address cannot be had."""
        loop = asyncio.get_running_loop()
        self._most_connections = affordable_connections(self.limits.connections)
        self.now = loop.time()
        self._server = await loop.create_server(
            lambda: Http2Connection(self),
            self._host,
            self._port,
            backlog=_BACKLOG,
            ssl=self._tls,
            ssl_handshake_timeout=self.limits.preface_s if self._tls is not None else None,
            reuse_port=self._reuse_port or None,
        )
        self._port = self._server.sockets[0].getsockname()[1]
        self._sweeper = loop.create_task(self._sweep())

    async def stop(self, grace_s: float) -> None:
        """Take no more connections, let the open streams end within `grace_s` seconds, then cut them off."""
        if self._server is None or self._sweeper is None:
            return
        self._server.close()
        for connection in tuple(self._connections):
            connection.session.leave_now()
        await self._wait_until_closed(grace_s)
        for connection in tuple(self._connections):
            connection.session.fail(ErrorCode.NO_ERROR, "the server has stopped")
        await self._wait_until_closed(_SWEEP_S)
        for connection in tuple(self._connections):
            connection.abort()
        self._sweeper.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._sweeper
        self._server = self._sweeper = None

    async def _wait_until_closed(self, timeout_s: float) -> None:
        if self._connections:
            self._all_closed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._all_closed.wait()

    def opened(self, connection: Http2Connection) -> bool:
        """Count a connection in; False if there are too many."""
        self._connections.add(connection)
        return len(self._connections) <= self._most_connections

    def closed(self, connection: Http2Connection) -> None:
        """Count a connection out."""
        self._connections.discard(connection)
        if not self._connections:
            self._all_closed.set()

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        limits = self.limits
        shortest = min(limits.keepalive_s, limits.keepalive_timeout_s, limits.age_s or _SWEEP_S)
        interval = min(_SWEEP_S, max(_LEAST_SWEEP_S, shortest / 2))
        while True:
            await asyncio.sleep(interval)
            self.now = loop.time()
            for connection in tuple(self._connections):
                connection.sweep()
