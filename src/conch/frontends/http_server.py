"""The HTTP listener: accepts connections, keeps their number and their patience in bounds, stops in order.

A listener of our own on httptools, since on the inference path it is most of what a request costs: it knows HTTP/1.1
and nothing of the protocols above it. A handler is called with a request and the reply to fill, and knows no socket.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial

from conch.frontends.descriptors import affordable_connections
from conch.frontends.http_connection import HttpConnection
from conch.frontends.http_errors import JSON
from conch.frontends.http_message import HttpLimits, HttpRequest
from conch.frontends.http_owner import Handler
from conch.frontends.http_reply import HttpReply
from conch.frontends.turns import Turns
from conch.protocol import documents

_log = logging.getLogger(__name__)

_SWEEP_S = 1.0
_BACKLOG = 1024


class HttpServer:
    """Serves one handler on one address. Life: `start` → `stop`."""

    def __init__(
        self,
        handler: Handler,
        host: str,
        port: int,
        *,
        limits: HttpLimits | None = None,
        body_limit: Callable[[HttpRequest], int] | None = None,
        reuse_port: bool = False,
    ) -> None:
        """Assign. `body_limit` tells how large a body may be for a request that exceeds the limit of the others."""
        self.handler: Handler = _InTurns(handler)
        self.limits = limits or HttpLimits()
        self.body_limit = body_limit
        self._most_connections = self.limits.connections
        self.now = 0.0
        self._host = host
        self._port = port
        self._reuse_port = reuse_port
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._connections: set[HttpConnection] = set()
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
            lambda: HttpConnection(self).protocol,
            self._host,
            self._port,
            backlog=_BACKLOG,
            reuse_port=self._reuse_port or None,
        )
        self._port = self._server.sockets[0].getsockname()[1]
        self._sweeper = loop.create_task(self._sweep())

    async def stop(self, timeout_s: float) -> None:
        """Take no more connections, close the idle ones, let the rest finish for `timeout_s`, then cut them off."""
        if self._server is None:
            return
        self._server.close()
        for connection in tuple(self._connections):
            connection.finish()
        if self._connections:
            self._all_closed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._all_closed.wait()
        for connection in tuple(self._connections):
            connection.abort()
        assert self._sweeper is not None
        self._sweeper.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._sweeper

    def opened(self, connection: HttpConnection) -> bool:
        """Count a connection in; False if there are too many."""
        self._connections.add(connection)
        return len(self._connections) <= self._most_connections

    def closed(self, connection: HttpConnection) -> None:
        """Count a connection out."""
        self._connections.discard(connection)
        if not self._connections:
            self._all_closed.set()

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_SWEEP_S)
            self.now = loop.time()
            for connection in tuple(self._connections):
                connection.sweep()


class _InTurns:
    """A handler that hands on to another, at once or in a later turn of the loop."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._turns = Turns()

    def __call__(self, request: HttpRequest, reply: HttpReply) -> None:
        if self._turns.free():
            self._handler(request, reply)
        else:
            self._turns.later(partial(self._handle, request, reply))

    def _handle(self, request: HttpRequest, reply: HttpReply) -> None:
        if not reply.open:
            return
        try:
            self._handler(request, reply)
        except Exception:
            _log.exception("handling %r failed", request)
            reply.send(500, JSON, documents.error("internal error"))
