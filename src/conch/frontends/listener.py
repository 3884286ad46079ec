"""The base class of listeners: accepts connections, limits their number, enforces timeouts, and shuts down."""

import asyncio
import contextlib
import ssl
from abc import ABC, abstractmethod
from typing import Generic, Protocol, TypeVar

from conch.frontends.file_limits import max_connections
from conch.frontends.loop_budget import ParseBudget
from conch.frontends.traffic import SweepClock, Traffic

SWEEP_S = 1.0
_BACKLOG = 1024


class Swept(Protocol):
    """A connection as its listener sees it."""

    def sweep(self) -> None:
        """Enforce the timeouts. Called about once a second."""

    def abort(self) -> None:
        """Close immediately, whatever is in flight."""


Connection = TypeVar("Connection", bound=Swept)


class Listener(ABC, Generic[Connection]):
    """Listens on one address. Life: `start` → `stop`, which the kinds of listeners have."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        connections: int,
        reuse_port: bool,
        tls: ssl.SSLContext | None = None,
        handshake_s: float | None = None,
        sweep_s: float = SWEEP_S,
        traffic: Traffic | None = None,
    ) -> None:
        """Assign. `connections` is the maximum; `sweep_s` is the interval of the timeout checks."""
        self.traffic = traffic or Traffic()
        self.parse_budget = ParseBudget()
        self.clock = SweepClock()
        self._host = host
        self._port = port
        self._max_connections = connections
        self._reuse_port = reuse_port
        self._tls = tls
        self._handshake_s = handshake_s
        self._sweep_s = sweep_s
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._connections: set[Connection] = set()
        self._all_closed = asyncio.Event()

    @abstractmethod
    def _accept(self) -> asyncio.BaseProtocol:
        """Make the protocol object of a client that connects."""

    @property
    def port(self) -> int:
        """The port that is listened on; if the system chooses it, known after `start`."""
        return self._port

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._connections)

    async def start(self) -> None:
        """Listen. Raises OSError if the address is not available."""
        loop = asyncio.get_running_loop()
        self._max_connections = max_connections(self._max_connections)
        self.clock.now = loop.time()
        self._server = await loop.create_server(
            self._accept,
            self._host,
            self._port,
            backlog=_BACKLOG,
            ssl=self._tls,
            ssl_handshake_timeout=self._handshake_s if self._tls is not None else None,
            reuse_port=self._reuse_port or None,
        )
        self._port = self._server.sockets[0].getsockname()[1]
        self._sweeper = loop.create_task(self._sweep())

    def opened(self, connection: Connection) -> bool:
        """Count a connection in; False if there are too many."""
        self._connections.add(connection)
        return len(self._connections) <= self._max_connections

    def closed(self, connection: Connection) -> None:
        """Count a connection out."""
        self._connections.discard(connection)
        if not self._connections:
            self._all_closed.set()

    def stop_accepting(self) -> None:
        """Stop accepting connections; open ones are not affected."""
        if self._server is not None:
            self._server.close()

    def _close(self) -> tuple[Connection, ...]:
        """Stop accepting connections; return the open ones."""
        self.stop_accepting()
        return tuple(self._connections)

    async def _wait_until_closed(self, timeout_s: float) -> None:
        """Wait until no client is connected, for at most `timeout_s`."""
        if self._connections:
            self._all_closed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._all_closed.wait()

    async def _abort_connections(self) -> None:
        """Abort the remaining connections, and stop the timeout checks."""
        for connection in tuple(self._connections):
            connection.abort()
        if self._sweeper is not None:
            self._sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeper
        self._server = self._sweeper = None

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._sweep_s)
            self.clock.now = loop.time()
            for connection in tuple(self._connections):
                connection.sweep()
