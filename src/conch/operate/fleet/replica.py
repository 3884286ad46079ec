"""A replica: one process of `conch serve`, with the states of a pod."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from time import monotonic

from conch.base.http.client import answers_ok
from conch.base.process.local_server import serve_command, started_ports
from conch.operate.fleet.child import Child

_PROBE_PERIOD_S = 1.0  # of a ready replica
_PROBE_TIMEOUT_S = 2.0
# Beyond the server's exit timeout, for the end of its models' processes.
_KILL_GRACE_S = 10.0


class ReplicaState(Enum):
    """Where a replica is in its life."""

    STARTING = "starting"  # the process runs; nothing is known to listen
    RUNNING = "running"  # listens; its readiness is in `ready`
    TERMINATING = "terminating"  # gets no new requests and finishes those in flight
    ENDED = "ended"  # the process has ended, or could not be started


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """How a replica is started and ended. `flags` are flags of `conch serve`."""

    repositories: Sequence[Path]
    flags: Sequence[str] = ()
    exit_timeout_s: int = 30
    # Between the removal from the proxy and SIGTERM, as a preStop hook waits for the removal of the endpoint.
    pre_stop_s: float = 0.5

    def command(self) -> list[str]:
        """Return the command line."""
        return serve_command(
            *(f"--model-repository={each}" for each in self.repositories),
            f"--exit-timeout-secs={self.exit_timeout_s}",
            *self.flags,
        )


class Replica:
    """One process. Life: `start`, `probe` again and again, `terminate`."""

    def __init__(self, name: str, folder: Path, settings: ReplicaSettings, created_s: float) -> None:
        """Assign. `created_s` and all other times are seconds of the caller's clock."""
        self.name = name
        self.created_s = created_s
        self.ready = False
        self.ready_since_s: float | None = None  # when `ready` last changed
        self.was_ready = False
        self.ports: dict[str, int] = {}
        self.state = ReplicaState.STARTING
        self._settings = settings
        self._next_probe = 0.0
        self._child = Child(settings.command(), folder / f"{name}.log")

    @property
    def pid(self) -> int:
        """The process id."""
        return self._child.pid

    @property
    def failure(self) -> str:
        """How the process ended, with the end of its log."""
        status = self._child.status
        how = f"killed by signal {-status}" if status is not None and status < 0 else f"exited with status {status}"
        last = self._child.tail.strip().splitlines()[-1:]
        return f"{how}: {last[0]}" if last and status != 0 and self._child.status != -9 else how

    def address(self, service: str) -> str:
        """Return `host:port` of a service: http, grpc or metrics."""
        return f"127.0.0.1:{self.ports[service]}"

    async def start(self) -> None:
        """Start the process. Raises OSError."""
        await self._child.start()

    async def probe(self, now_s: float) -> None:
        """Find out whether the process runs, where it listens, and whether it is ready."""
        if self.state in (ReplicaState.TERMINATING, ReplicaState.ENDED):
            return
        if self._child.status is not None:
            self.state = ReplicaState.ENDED
            self._set_ready(False, now_s)
            return
        if self.state is ReplicaState.STARTING:
            self.ports = started_ports(self._child.log)
            if not self.ports:
                return
            self.state = ReplicaState.RUNNING
        if self.ready and monotonic() < self._next_probe:
            return
        self._next_probe = monotonic() + _PROBE_PERIOD_S
        ready = await asyncio.to_thread(answers_ok, f"http://{self.address('http')}/v2/health/ready", _PROBE_TIMEOUT_S)
        if self.state is ReplicaState.RUNNING:
            self._set_ready(ready, now_s)

    async def terminate(self) -> int:
        """Wait for the proxy, send SIGTERM, and wait until requests in flight have ended. Returns the exit status."""
        self.state = ReplicaState.TERMINATING
        self.ready = False
        if self._child.status is None:
            await asyncio.sleep(self._settings.pre_stop_s)
        status = await self._child.stop(self._settings.exit_timeout_s + _KILL_GRACE_S)
        self.state = ReplicaState.ENDED
        return status

    async def kill(self) -> None:
        """End the process and its children without draining."""
        await self._child.kill()
        self.state = ReplicaState.ENDED

    def _set_ready(self, ready: bool, now_s: float) -> None:
        if ready != self.ready or self.ready_since_s is None:
            self.ready_since_s = now_s
        self.ready = ready
        self.was_ready = self.was_ready or ready

    def __repr__(self) -> str:
        return f"Replica {self.name}: {self.state.value}{', ready' if self.ready else ''}"
