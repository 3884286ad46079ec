"""The base class of listeners: accepts connections, limits their number, enforces timeouts, and shuts down."""

import asyncio
import contextlib
import errno
import logging
import os
import resource
import socket
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from conch.machine.memory import default_request_memory
from conch.protocols.connections.loop_budget import ParseBudget
from conch.protocols.connections.tls import ReloadedTls
from conch.protocols.connections.traffic import SweepClock, Traffic

# For models' files, the channels to their processes, listeners and logs.
_RESERVED = 256
# A listener with fewer is useless.
_MIN_CONNECTIONS = 16


def raise_file_limit() -> None:
    """Raise this process's soft limit to the hard limit: the usual soft limit of 1024 is too low for a server."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def max_connections(configured: int) -> int:
    """Return how many connections a listener may hold, at most `configured`.

    There are two busy listeners. Clients beyond this number get an error, which also takes a descriptor.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return configured
    return min(configured, max((soft - _RESERVED) // 2, _MIN_CONNECTIONS))


_log = logging.getLogger(__name__)

SWEEP_S = 1.0
_MIN_TAKEN_BYTES_PER_S = 65_536  # a client that reads more slowly is aborted first when memory is short
_BACKLOG = 1024
_LAST_PORT = 65535


class Swept(Protocol):
    """A connection as its listener sees it."""

    @property
    def peer(self) -> str:
        """The address of the client, "" for a Unix socket."""

    @property
    def unsent_bytes(self) -> int:
        """The bytes of answers that the client has not taken."""

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
        tls: ReloadedTls | None = None,
        handshake_s: float | None = None,
        sweep_s: float = SWEEP_S,
        traffic: Traffic | None = None,
        max_unsent_bytes: int | None = None,
    ) -> None:
        """`connections` is the maximum; `sweep_s` is the interval of the timeout checks.

        `max_unsent_bytes` is the memory for unsent answers to all clients, by default as much as for request bodies.
        """
        self._max_unsent_bytes = default_request_memory() if max_unsent_bytes is None else max_unsent_bytes
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
        self._unsent: dict[Connection, int] = {}  # bytes at the last check, of connections that have some
        self._late: set[asyncio.Task[object]] = set()  # the last connections, being accepted

    @abstractmethod
    def retire_connections(self) -> None:
        """Make clients open other connections; requests on the present ones are still answered."""

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

    async def start(self, *, listen: bool = True, attempts: int = 1) -> None:
        """Bind the address, and accept connections now or at `listen`.

        A port in use is skipped for the next one, up to `attempts` ports. Raises OSError if none is available.
        """
        loop = asyncio.get_running_loop()
        self._max_connections = max_connections(self._max_connections)
        self.clock.now = loop.time()
        last = min(self._port + attempts - 1, _LAST_PORT) if self._port else 0
        while self._server is None:
            try:
                self._server = await loop.create_server(
                    self._accept,
                    self._host,
                    self._port,
                    backlog=_BACKLOG,
                    ssl=self._tls.context if self._tls is not None else None,
                    ssl_handshake_timeout=self._handshake_s if self._tls is not None else None,
                    reuse_port=self._reuse_port or None,
                    start_serving=listen,
                )
            except OSError as error:
                if error.errno != errno.EADDRINUSE or self._port >= last:
                    raise
                self._port += 1
        self._port = self._server.sockets[0].getsockname()[1]
        self._sweeper = loop.create_task(self._sweep())

    async def listen(self) -> None:
        """Accept connections; before, the system refuses them."""
        if self._server is not None:
            await self._server.start_serving()

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
        """Stop accepting connections; open ones, and those that the system has accepted, are not affected."""
        server = self._server
        if server is None:
            return
        # The system resets connections in the queue of a socket that closes; a proxy would not retry their requests.
        listening = server.sockets if server.is_serving() else ()
        copies = [socket.socket(fileno=os.dup(accepting.fileno())) for accepting in listening]
        server.close()
        for copy in copies:
            with copy, contextlib.suppress(OSError):
                while True:
                    self._accept_late(copy.accept()[0])

    def _accept_late(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        handshake_s = self._handshake_s if self._tls is not None else None
        task = asyncio.ensure_future(
            asyncio.get_running_loop().connect_accepted_socket(
                self._accept,
                connection,
                ssl=self._tls.context if self._tls is not None else None,
                ssl_handshake_timeout=handshake_s,
            )
        )
        self._late.add(task)
        task.add_done_callback(self._accepted_late)

    def _accepted_late(self, task: "asyncio.Task[object]") -> None:
        self._late.discard(task)
        if not task.cancelled():
            task.exception()  # a client that closed, or an invalid handshake

    async def _close(self) -> tuple[Connection, ...]:
        """Stop accepting connections; return the open ones."""
        self.stop_accepting()
        if self._late:
            _, pending = await asyncio.wait(self._late, timeout=SWEEP_S)
            for task in pending:
                task.cancel()
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
            if self._tls is not None:
                self._tls.refresh()
            connections = tuple(self._connections)
            for connection in connections:
                connection.sweep()
            self._limit_unsent(connections)

    def _limit_unsent(self, connections: Sequence[Connection]) -> None:
        """Abort connections while the unsent bytes of all exceed the maximum: first slow clients, the largest first."""
        before = self._unsent
        self._unsent = {connection: size for connection in connections if (size := connection.unsent_bytes)}
        excess = sum(self._unsent.values()) - self._max_unsent_bytes
        if excess <= 0:
            return
        taken = _MIN_TAKEN_BYTES_PER_S * self._sweep_s
        # Whether the client reads, or has had no time to; the negative size.
        order = {
            connection: (connection not in before or size < before[connection] - taken, -size)
            for connection, size in self._unsent.items()
        }
        for connection in sorted(order, key=order.__getitem__):
            if len(self._unsent) == 1 and order[connection][0]:
                break  # one answer of any size, to a client that reads
            size = self._unsent.pop(connection)
            text = (
                "aborted a connection of %s: %d MiB of its answers are unsent, and all clients together exceed %d MiB"
            )
            _log.warning(text, connection.peer, size >> 20, self._max_unsent_bytes >> 20)
            connection.abort()
            excess -= size
            if excess <= 0:
                break


def peer_address(transport: asyncio.BaseTransport) -> str:
    """Return the address of the client of a connection, "" for a Unix socket."""
    name = transport.get_extra_info("peername")
    return str(name[0]) if isinstance(name, tuple) and name else ""
