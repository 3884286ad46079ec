"""The frontend processes of a server, as the core sees them: starts, watches, commands and replaces them.

The core holds the ports by sockets that do not listen. Each process listens on them itself (SO_REUSEPORT), so that the
system spreads connections over the processes, and over those that are left when one has died.
"""

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from conch.base.errors import ConfigError, ModelLoadError
from conch.protocols.connections.traffic import Traffic
from conch.protocols.http.router import Router
from conch.server.backends.child.conch_child.ipc import arena
from conch.server.backends.processes.child_process import ChildProcess
from conch.server.backends.processes.fork_server import ForkServer
from conch.server.backends.processes.launch import Exit
from conch.server.core.catalog import Catalog
from conch.server.frontends.parts import Parts
from conch.server.frontends.processes.core_link import CoreLink, CoreParts
from conch.server.frontends.processes.link import (
    CATALOG,
    COMMAND,
    FORGOT,
    LOG,
    OPTIONS,
    REPORT,
    STARTED,
    STATE,
    STOPPED,
    Message,
)
from conch.server.frontends.processes.mirror import Publisher
from conch.server.frontends.processes.values import to_plain
from conch.server.frontends.v2_grpc.service import InferenceService
from conch.server.options.server_options import ServerOptions

_log = logging.getLogger(__name__)

# Of each direction. Pages are allocated on first use and returned when nothing uses the arena.
ARENA_BYTES = 1 << 30
_KEPT_BYTES = 1 << 26
_TICK_S = 0.25
_TICKS_PER_REPORT = 4
# Reports that a process may miss, one a second, before it is replaced; what it has not read before that, in bytes.
MAX_MISSED_REPORTS = 10
_MAX_UNSENT_BYTES = 1 << 28
_START_TIMEOUT_S = 60.0
_CORES_OF_ONE_LOOP, _MAX_AUTO = 4, 8
_STOP_GRACE_S = 1.0
_FORGET_TIMEOUT_S = 1.0
# Of the numbers of calls in the event log, which differ among all processes that there ever were.
_NUMBER_BITS = 40
# A process that ends sooner after its start is replaced after this time.
_BACKOFF_S = 1.0


class RemoteListener:
    """A port that all frontend processes listen on, in the place of a listener of this process."""

    def __init__(self, processes: "FrontendProcesses", flags: str, address: str, port: int, *, shared: bool) -> None:
        """`shared`: other servers may listen on the port, too."""
        self._processes = processes
        self._flags = flags
        self._address = address
        self._port = port
        self._shared = shared
        self._held: list[socket.socket] = []
        self.forwarded = Traffic()  # refusals of requests that the core has answered

    @property
    def port(self) -> int:
        """The port that is listened on; if the system chooses it, known after `start`."""
        return self._port

    @property
    def connections(self) -> int:
        """How many clients are connected, as of the last reports."""
        return sum(frontend.connections(self._flags) for frontend in self._processes.running)

    @property
    def traffic(self) -> Traffic:
        """Bytes and refusals of all processes, as of their last reports."""
        total = Traffic()
        ended = self._processes.ended.get(self._flags)
        for counts in (self.forwarded, *([ended] if ended else []), *self._processes.traffic(self._flags)):
            _add(total, counts)
        return total

    async def start(self, *, listen: bool = True, attempts: int = 1) -> None:  # noqa: ARG002 - `FrontendProcesses.start`
        """Hold the port, and find one where the system chooses. Raises OSError."""
        last = min(self._port + attempts - 1, 65_535) if self._port else 0
        addresses = await asyncio.get_running_loop().getaddrinfo(
            self._address or None, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        while not self._held:
            try:
                if not self._shared and self._port:
                    self._bind(addresses, shared=False)
                    self.release()
                self._bind(addresses, shared=True)
            except OSError:
                self.release()
                if self._port >= last:
                    raise
                self._port += 1

    def _bind(self, addresses: Iterable[Any], *, shared: bool) -> None:
        for family, kind, protocol, _, address in addresses:
            held = socket.socket(family, kind, protocol)
            self._held.append(held)
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            held.bind((address[0], self._port, *address[2:]))
            self._port = held.getsockname()[1]

    def release(self) -> None:
        """Release the port."""
        for held in self._held:
            held.close()
        self._held.clear()

    async def listen(self) -> None:
        """Accept connections; before, the system refuses them."""
        self._processes.listening = True
        self._processes.command("listen", self._flags)

    def retire_connections(self) -> None:
        """Make clients open other connections; requests on the present ones are still answered."""
        self._processes.command("retire", self._flags)

    def stop_accepting(self) -> None:
        """Stop accepting connections; open ones are not affected."""
        self._processes.leaving = True
        self._processes.command("stop accepting", self._flags)
        self.release()

    async def stop(self, timeout_s: float) -> None:
        """Close idle connections, let the rest finish for `timeout_s`, then abort them."""
        self.stop_accepting()
        await self._processes.stop_port(self._flags, timeout_s)


class _Frontend:
    """One process, from its start to its exit."""

    def __init__(self, index: int, child: ChildProcess, core: CoreLink) -> None:
        self.index = index
        self.child = child
        self.core = core
        self.started: asyncio.Future[str] = asyncio.get_running_loop().create_future()  # "" or why it could not
        self.since = asyncio.get_running_loop().time()
        self.missed = 0  # reports
        self.listeners: dict[str, tuple[int, int, int, dict[str, int]]] = {}
        self.memory = (0, 0, 0)
        self.cpu_s = 0.0
        self.stopped: set[str] = set()  # ports
        self.on_stopped = asyncio.Event()
        self.on_forgot = asyncio.Event()

    def connections(self, flags: str = "") -> int:
        """Return the connections of a port, or of all."""
        return sum(counts[0] for name, counts in self.listeners.items() if flags in ("", name))


class FrontendProcesses:
    """All frontend processes of a server. Life cycle: `listener`… → `start` → `stop`."""

    def __init__(self, parts: Parts, catalog: Catalog, count: int) -> None:
        self._parts = parts
        self._catalog = catalog
        self._count = count
        self._publisher = Publisher(parts.inference)
        self._routers: dict[str, Router] = {}
        self._listeners: dict[str, RemoteListener] = {}
        self._core: CoreParts
        self._forks = ForkServer((sys.executable, "-m", "conch.server.frontends.processes"), limit_s=_START_TIMEOUT_S)
        self._frontends: dict[int, _Frontend] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._state: tuple[bool, bool] = (False, False)
        self._options: Any = None
        self._stopping = False
        self.listening = False
        self.leaving = False  # whether no process is replaced any more
        self.ended: dict[str, Traffic] = {}  # of processes that have exited, by port
        self._ended_cpu_s = 0.0
        self.restarts = 0
        self._launched = 0  # processes, with those that have exited

    @property
    def running(self) -> list[_Frontend]:
        """The processes that serve."""
        return list(self._frontends.values())

    def listener(
        self, flags: str, address: str, port: int, router: Router | None = None, *, shared: bool = False
    ) -> RemoteListener:
        """Return the listener of a port; `router` answers the requests that the processes forward."""
        if router is not None:
            self._routers[flags] = router
        self._listeners[flags] = RemoteListener(self, flags, address, port, shared=shared)
        return self._listeners[flags]

    async def start(self, *, listen: bool) -> None:
        """Start all processes. Raises ConfigError if one cannot be started."""
        parts = self._parts
        self._core = CoreParts(
            parts.inference,
            parts.observer,
            parts.recorder,
            parts.regions,
            self._routers,
            InferenceService(parts).methods(),
            {flags: listener.forwarded for flags, listener in self._listeners.items()},
            parts.explain,
        )
        self.listening = listen
        ports = {flags: listener.port for flags, listener in self._listeners.items()}
        self._options = to_plain(_options_of(parts.options, ports))
        self._catalog.on_publish = self.publish
        if parts.limits is not None:
            parts.limits.on_change = self._forget_refusals
        results = await asyncio.gather(*map(self._launch, range(self._count)), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise ConfigError(f"cannot start a frontend process: {result}") from result
        self._spawn(self._watch())

    def command(self, *words: object) -> None:
        """Send a command to all processes."""
        for frontend in self._frontends.values():
            frontend.core.link.send((COMMAND, *words))

    async def _forget_refusals(self) -> None:
        """Have all processes forget what was refused over limits that have changed; return soon if one is busy."""
        frontends = [frontend for frontend in self._frontends.values() if frontend.started.done()]
        for frontend in frontends:
            frontend.on_forgot.clear()
        self.command("limits")
        with suppress(TimeoutError):
            async with asyncio.timeout(_FORGET_TIMEOUT_S):
                for frontend in frontends:
                    await frontend.on_forgot.wait()

    def publish(self) -> None:
        """Send what has changed in the catalog, and the state of the server, to all processes."""
        changes = self._publisher.changes()
        if changes:
            self._broadcast((CATALOG, changes))

    async def stop_port(self, flags: str, timeout_s: float) -> None:
        """Stop the listeners of a port in all processes."""
        self.command("stop", flags, timeout_s)
        for frontend in self.running:
            if not frontend.started.done():
                frontend.child.kill()  # it has no clients, and does not know the port yet
            while flags not in frontend.stopped and frontend.child.alive:
                frontend.on_stopped.clear()
                await frontend.on_stopped.wait()

    async def stop(self) -> None:
        """End all processes."""
        self._stopping = self.leaving = True
        self._catalog.on_publish = None
        for task in list(self._tasks):
            task.cancel()
        frontends = self.running
        for frontend in frontends:
            frontend.core.link.close()
        for frontend in frontends:
            if not await frontend.child.wait(_STOP_GRACE_S):
                frontend.child.kill()
                await frontend.child.wait(None)
        self._forks.stop()
        for listener in self._listeners.values():
            listener.release()

    def traffic(self, flags: str) -> Iterator[Traffic]:
        """Yield the counters of a port in each running process, as of its last report."""
        for frontend in self._frontends.values():
            counts = frontend.listeners.get(flags)
            if counts is not None:
                yield _traffic(*counts[1:])

    @property
    def memory(self) -> tuple[int, int, int]:
        """Bytes of request bodies in the processes, refused requests and evicted uploads."""
        sums = [sum(column) for column in zip(*(frontend.memory for frontend in self.running), strict=True)]
        return (sums[0], sums[1], sums[2]) if sums else (0, 0, 0)

    async def _launch(self, index: int) -> None:
        """Start one process and wait until it listens. Raises ConchError, OSError."""
        outgoing = arena.create("conch frontend answers", ARENA_BYTES)
        incoming = arena.create("conch frontend requests", ARENA_BYTES)
        ours, theirs = socket.socketpair()
        frontend: _Frontend
        child = ChildProcess(f"frontend {index}", lambda *_: None, lambda exit_: self._exited(frontend, exit_))
        core = CoreLink(self._core, lambda message: self._received(frontend, message), lambda: None, self._changed)
        frontend = _Frontend(index, child, core)
        try:
            try:
                with theirs:
                    core.connect(outgoing, incoming)
                    # The process sends what this one receives.
                    await child.start(self._forks, (theirs.fileno(), incoming, outgoing))
            finally:
                os.close(outgoing)
                os.close(incoming)
            self._frontends[index] = frontend
            await self._introduce(frontend, ours)
        except BaseException:
            if self._frontends.get(index) is frontend:
                del self._frontends[index]
            child.kill()
            core.link.close()
            ours.close()
            raise

    async def _introduce(self, frontend: _Frontend, ours: socket.socket) -> None:
        """Send a process what it needs, and wait until it listens. Raises ConfigError, OSError, TimeoutError."""
        link = frontend.core.link
        await asyncio.get_running_loop().create_unix_connection(lambda: link.protocol, sock=ours)
        memory = self._parts.budget.limit_bytes // self._count
        link.send((CATALOG, list(self._publisher.entries.values())))
        link.send((STATE, *self._state))
        self._launched += 1
        link.send((OPTIONS, self._options, self.listening, memory, self._launched << _NUMBER_BITS))
        async with asyncio.timeout(_START_TIMEOUT_S):
            problem = await frontend.started
        if problem:
            raise ConfigError(problem)

    def _received(self, frontend: _Frontend, message: Message) -> None:
        kind = message[0]
        if kind == REPORT:
            _, listeners, frontend.memory, frontend.cpu_s = message
            frontend.listeners = listeners
            frontend.missed = 0
        elif kind == LOG:
            _relog(frontend, *message[1:])
        elif kind == STARTED:
            if not frontend.started.done():
                frontend.started.set_result(message[1])
        elif kind == STOPPED:
            frontend.stopped.add(message[1])
            frontend.on_stopped.set()
        elif kind == FORGOT:
            frontend.on_forgot.set()

    def _exited(self, frontend: _Frontend, exit_: Exit) -> None:
        """Cancel what it had asked for, and replace it."""
        frontend.core.link.close()
        frontend.on_stopped.set()
        frontend.on_forgot.set()
        is_running = self._frontends.get(frontend.index) is frontend
        if is_running:
            del self._frontends[frontend.index]
        for flags, counts in frontend.listeners.items():
            _add(self.ended.setdefault(flags, Traffic()), _traffic(*counts[1:]))
        if not frontend.started.done():
            frontend.started.set_result(f"the process {exit_}")
            return
        if self.leaving or not is_running:
            return
        _log.error("frontend %d (process %d) %s; restarting", frontend.index, frontend.child.pid, exit_)
        self.restarts += 1
        lived_s = asyncio.get_running_loop().time() - frontend.since
        self._spawn(self._replace(frontend.index, 0.0 if lived_s > _BACKOFF_S else _BACKOFF_S))

    async def _replace(self, index: int, delay_s: float) -> None:
        while not await self._is_replaced(index, delay_s):
            delay_s = _BACKOFF_S

    async def _is_replaced(self, index: int, delay_s: float) -> bool:
        """Try to start a process after a time; True also if none is needed any more."""
        await asyncio.sleep(delay_s)
        if self.leaving:
            return True
        try:
            await self._launch(index)
        except (ConfigError, ModelLoadError, OSError, TimeoutError) as error:
            self._log_failed_start(index, error)
            return False
        return True

    def _log_failed_start(self, index: int, error: Exception) -> None:
        if not self.leaving:
            _log.error("cannot restart frontend %d: %s; retrying in %g s", index, error, _BACKOFF_S)

    async def _watch(self) -> None:
        """Send the state when it changes, and replace a process that does not answer."""
        for tick in _numbers():
            await asyncio.sleep(_TICK_S)
            self._send_state(self._parts.inference.ready())
            self.publish()
            if tick % _TICKS_PER_REPORT:
                continue
            for frontend in self.running:
                frontend.missed += 1
                if frontend.missed > MAX_MISSED_REPORTS:
                    frontend.child.kill(f"it has not answered for {MAX_MISSED_REPORTS} s")
                elif frontend.core.link.unsent_bytes > _MAX_UNSENT_BYTES:
                    frontend.child.kill(f"it has not read {_MAX_UNSENT_BYTES >> 20} MiB")
                frontend.core.link.trim(_KEPT_BYTES)
            self.command("report")

    def _changed(self) -> None:
        """Send whether requests are traced, or that the server is ready now: an answer may report either."""
        self._send_state(self._state[0] or self._parts.inference.ready())

    def _send_state(self, ready: bool) -> None:
        state = (ready, self._parts.observer.on)
        if state != self._state:
            self._state = state
            self._broadcast((STATE, *state))

    def _broadcast(self, message: Message) -> None:
        for frontend in self._frontends.values():
            frontend.core.link.send(message)

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def frontends_for(cores: int) -> int:
    """Return how many processes `--frontend-processes=auto` means: the core's loop is the limit beyond four cores."""
    return 1 if cores <= _CORES_OF_ONE_LOOP else min(max(cores // _CORES_OF_ONE_LOOP, 2), _MAX_AUTO)


def _numbers() -> Iterator[int]:
    number = 0
    while True:
        number += 1
        yield number


def _relog(
    frontend: _Frontend, name: str, level: int, text: str, path: str, line: int, block: str, created: float
) -> None:
    """Write a record of a process to the log of the server."""
    logger = logging.getLogger(name)
    if not logger.isEnabledFor(level):
        return
    record = logger.makeRecord(name, level, path, line, "%s", (text,), None, extra={"block": block} if block else None)
    record.created, record.process = created, frontend.child.pid
    logger.handle(record)


def _traffic(received_bytes: int, sent_bytes: int, refused: Mapping[str, int]) -> Traffic:
    traffic = Traffic()
    traffic.received_bytes, traffic.sent_bytes = received_bytes, sent_bytes
    traffic.refused.update(refused)
    return traffic


def _add(total: Traffic, counts: Traffic) -> None:
    total.received_bytes += counts.received_bytes
    total.sent_bytes += counts.sent_bytes
    for reason, count in counts.refused.items():
        total.refused[reason] += count


def _options_of(options: ServerOptions, ports: dict[str, int]) -> ServerOptions:
    """Return the options of the processes: ports that the core has reserved, and none that it listens on itself."""
    return replace(
        options,
        http_port=ports.get("http", 0),
        openai_port=ports.get("openai", -1),
        grpc_port=ports.get("grpc", 0),
        reuse_http_port=True,
        reuse_grpc_port=True,
    )
