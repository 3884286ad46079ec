"""Proxies in front of the replicas: HAProxy, changed through its runtime API, and nginx, changed by a reload.

HAProxy is never reloaded, so that no connection is closed. Servers cannot be added to backends that track each other
at runtime: there are as many slots as replicas can exist at a time, servers in maintenance that get the address of a
replica when it is ready. Of nginx, the old workers finish their requests and close their connections.
"""

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import Literal, Protocol

from conch.base.errors import Unavailable
from conch.operate.deployment.load_balancers import (
    BalancedReplica,
    LoadBalancer,
    haproxy_configuration,
    nginx_configuration,
)
from conch.operate.fleet.child import Child
from conch.operate.fleet.replicas import Replica, ReplicaState

_START_TIMEOUT_S = 30.0
_POLL_S = 0.05
_STOP_TIMEOUT_S = 5.0
_COMMAND_TIMEOUT_S = 5.0
_UNUSED_PORT = 1
# An upstream needs a server.
_NONE = BalancedReplica("none", "127.0.0.1", 1, 1)


class Proxy(Protocol):
    """A proxy on 127.0.0.1. Life: `start`, `update` again and again, `stop`."""

    child: Child

    async def start(self) -> None:
        """Listen, without replicas. Raises Unavailable."""

    async def update(self, ready: Sequence[Replica]) -> None:
        """Send new requests to these replicas only; requests in flight elsewhere continue."""

    async def stop(self) -> None:
        """End."""


async def until_listening(child: Child, places: Sequence[int | Path], log: Path) -> None:
    """Return when a proxy accepts connections on all ports and Unix sockets. Raises Unavailable with its log."""
    deadline = monotonic() + _START_TIMEOUT_S
    for place in places:
        while not await _accepts(place):
            if child.status is not None or monotonic() > deadline:
                raise Unavailable(f"{log.stem} does not listen: {child.tail.strip()}")
            await asyncio.sleep(_POLL_S)


async def _accepts(place: int | Path) -> bool:
    try:
        if isinstance(place, Path):
            _, writer = await asyncio.open_unix_connection(place)
        else:
            _, writer = await asyncio.open_connection("127.0.0.1", place)
    except OSError:
        return False
    writer.close()
    return True


class HaproxyProxy:
    """HAProxy with `slots` servers per backend."""

    def __init__(self, program: str, folder: Path, ports: tuple[int, int], slots: int) -> None:
        """`ports` are those for HTTP and gRPC."""
        self._ports = ports
        self._socket = folder / "haproxy.sock"
        names = [f"slot{number}" for number in range(slots)]
        balancer = LoadBalancer(
            replicas=tuple(
                BalancedReplica(name, "127.0.0.1", _UNUSED_PORT, _UNUSED_PORT, state="down") for name in names
            ),
            address="127.0.0.1",
            http_port=ports[0],
            grpc_port=ports[1],
            admin_socket=str(self._socket),
            access_log=False,
        )
        self._text = haproxy_configuration(balancer)
        self._configuration = folder / "haproxy.cfg"
        self.child = Child([program, "-db", "-f", str(self._configuration)], folder / "haproxy.log")
        self._slots: dict[str, Replica | None] = dict.fromkeys(names)
        self._draining: set[str] = set()
        self._backends: list[str] = []

    async def start(self) -> None:
        """Start with all slots in maintenance. Raises Unavailable."""
        self._configuration.write_text(self._text)
        await self.child.start()
        await until_listening(self.child, (*self._ports, self._socket), self.child.log)  # the socket is the last
        answer = await self._command("show servers state")
        rows = [line.split() for line in answer.splitlines() if line and line[0].isdecimal() and " " in line]
        self._backends = list(dict.fromkeys(row[1] for row in rows if len(row) > 1))

    async def update(self, ready: Sequence[Replica]) -> None:
        """Fill slots with new replicas, drain those of others, and free those of replicas that have ended."""
        for slot, replica in self._slots.items():
            if replica is not None and replica.state is ReplicaState.ENDED:
                await self._set_state(slot, "maint")
                self._slots[slot] = None
        placed = {replica: slot for slot, replica in self._slots.items() if replica is not None}
        for replica in ready:
            if replica not in placed:
                await self._set_state(await self._place(replica), "ready")
            elif placed[replica] in self._draining:
                await self._set_state(placed[replica], "ready")
        for replica, slot in placed.items():
            if replica not in ready and slot not in self._draining:
                await self._set_state(slot, "drain")

    async def stop(self) -> None:
        """End."""
        await self.child.stop(_STOP_TIMEOUT_S)

    async def _set_state(self, slot: str, state: Literal["ready", "drain", "maint"]) -> None:
        # Followers inherit the state, but they have their own maintenance, in which they were configured.
        await self._command(*(f"set server {backend}/{slot} state {state}" for backend in reversed(self._backends)))
        (self._draining.add if state == "drain" else self._draining.discard)(slot)

    async def _place(self, replica: Replica) -> str:
        """Set the addresses of a free slot to those of a replica. Raises Unavailable if there is none."""
        slot = next((slot for slot, taken in self._slots.items() if taken is None), None)
        if slot is None:
            raise Unavailable(f"all {len(self._slots)} slots of haproxy are in use")
        ports = {backend: replica.ports["grpc" if backend.startswith("grpc") else "http"] for backend in self._backends}
        await self._command(
            *(f"set server {backend}/{slot} addr 127.0.0.1 port {port}" for backend, port in ports.items())
        )
        self._slots[slot] = replica
        return slot

    async def _command(self, *commands: str) -> str:
        """Run commands of the runtime API. Raises Unavailable."""
        line = "; ".join(commands)
        try:
            async with asyncio.timeout(_COMMAND_TIMEOUT_S):
                reader, writer = await asyncio.open_unix_connection(self._socket)
                writer.write(f"{line}\n".encode())
                answer = (await reader.read()).decode().strip()
                writer.close()
        except (OSError, TimeoutError) as error:
            raise Unavailable(f'haproxy does not answer "{line}": {error}; {self.child.tail.strip()}') from None
        said = [reply for reply in answer.splitlines() if reply] if line.startswith("set ") else []
        if rejected := [reply for reply in said if "changed" not in reply and "no need" not in reply]:
            raise Unavailable(f'haproxy rejects "{line}": {rejected[0]}')
        return answer


class NginxProxy:
    """nginx with the replicas in its configuration."""

    def __init__(self, program: str, folder: Path, ports: tuple[int, int]) -> None:
        """`ports` are those for HTTP and gRPC."""
        self._ports = ports
        self._run_folder = folder / "nginx"
        self._configuration = folder / "nginx.conf"
        command = [program, "-p", str(folder), "-e", "stderr", "-c", str(self._configuration), "-g", "daemon off;"]
        self.child = Child(command, folder / "nginx.log")

    async def start(self) -> None:
        """Start without replicas. Raises Unavailable."""
        self._run_folder.mkdir()
        self._write((_NONE,))
        await self.child.start()
        await until_listening(self.child, self._ports, self.child.log)

    async def update(self, ready: Sequence[Replica]) -> None:
        """Write the configuration and reload."""
        backends = tuple(
            BalancedReplica(replica.name, "127.0.0.1", replica.ports["http"], replica.ports["grpc"])
            for replica in ready
        )
        self._write(backends or (_NONE,))
        self.child.signal(signal.SIGHUP)

    async def stop(self) -> None:
        """End."""
        await self.child.stop(_STOP_TIMEOUT_S)

    def _write(self, backends: tuple[BalancedReplica, ...]) -> None:
        balancer = LoadBalancer(
            replicas=backends,
            address="127.0.0.1",
            http_port=self._ports[0],
            grpc_port=self._ports[1],
            run_folder=str(self._run_folder),
            access_log=False,
        )
        self._configuration.write_text(nginx_configuration(balancer))
