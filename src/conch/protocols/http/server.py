"""The HTTP/1.1 listener.

It is built on httptools because HTTP is most of the cost of a request on the inference path. It implements HTTP/1.1 and
nothing of the protocols above it. A handler is called with a request and the reply to write.
"""

import asyncio
from collections.abc import Callable

from conch.protocols.connections.body_budget import DEFAULT_LIMIT_BYTES, BodyBudget
from conch.protocols.connections.listener import Listener
from conch.protocols.connections.tls import ReloadedTls
from conch.protocols.http.connection import HttpConnection
from conch.protocols.http.message import HttpLimits, HttpRefusal, HttpRequest
from conch.protocols.http.sender import BudgetedHandler
from conch.protocols.http.server_context import Handler, ServerContext


class HttpServer(Listener[HttpConnection]):
    """Serves one handler on one address. Life: `start` → `stop`."""

    def __init__(
        self,
        handler: Handler,
        host: str,
        port: int,
        *,
        limits: HttpLimits | None = None,
        body_limit: Callable[[HttpRequest], int] | None = None,
        refusal: Callable[[HttpRequest], HttpRefusal | None] | None = None,
        budget: BodyBudget | None = None,
        reuse_port: bool = False,
        max_unsent_bytes: int | None = None,
        tls: ReloadedTls | None = None,
    ) -> None:
        """`body_limit` returns the limit of a body that exceeds the default one.

        `refusal` returns why a request is refused before its body is received, None if it is not. `budget` is the
        memory for bodies, which servers may share.
        """
        limits = limits or HttpLimits()
        super().__init__(
            host,
            port,
            connections=limits.connections,
            reuse_port=reuse_port,
            max_unsent_bytes=max_unsent_bytes,
            tls=tls,
            handshake_s=limits.receive_grace_s,
        )
        self.context = ServerContext(
            BudgetedHandler(handler),
            limits,
            budget or BodyBudget(DEFAULT_LIMIT_BYTES),
            self.parse_budget,
            self.traffic,
            self.clock,
            body_limit=body_limit,
            refusal=refusal,
        )

    def retire_connections(self) -> None:
        """Close each connection after its next answer, also those that open later."""
        self.context.ending = True
        for connection in self._connections:
            connection.sender.ending = True

    async def stop(self, timeout_s: float) -> None:
        """Stop accepting connections, close the idle ones, let the rest finish for `timeout_s`, then abort them."""
        for connection in await self._close():
            connection.finish()
        await self._wait_until_closed(timeout_s)
        await self._abort_connections()

    def _accept(self) -> asyncio.BaseProtocol:
        return HttpConnection(self, self.context).protocol
