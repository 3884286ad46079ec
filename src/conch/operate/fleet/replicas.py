"""Replicas: processes of `conch serve` with the states of pods, kept at a number, in the proxy and in Prometheus."""

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from time import monotonic
from typing import Protocol

from conch.base.errors import Unavailable
from conch.base.http.client import answers_ok
from conch.base.pacing import backoff_s
from conch.base.process.local_server import serve_command, started_ports
from conch.operate.fleet.child import Child
from conch.operate.fleet.journal import Journal
from conch.operate.fleet.timing import MAX_RESTART_BACKOFF_S, RESTART_BACKOFF_S, ClusterClock
from conch.operate.scaling.autoscaler import Pod, PodPhase

_PROBE_PERIOD_S = 1.0  # of a ready replica
_PROBE_TIMEOUT_S = 2.0
# Beyond the server's exit timeout, for the end of its models' processes.
_KILL_GRACE_S = 10.0
_TICK_S = 0.2
# Letters of the suffixes of pods' names: no vowels, no digits that look like letters.
_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"


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
            *(f"--model-repository={repository}" for repository in self.repositories),
            f"--exit-timeout-secs={self.exit_timeout_s}",
            *self.flags,
        )


class Replica:
    """One process. Life: `start`, `probe` again and again, `terminate`."""

    def __init__(self, name: str, folder: Path, settings: ReplicaSettings, created_s: float) -> None:
        """`created_s` and all other times are seconds of the caller's clock."""
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


class Endpoints(Protocol):
    """What sends requests to replicas that are ready."""

    async def update(self, ready: Sequence[Replica]) -> None:
        """Send new requests to these replicas only; requests in flight elsewhere continue."""


def to_delete(replicas: Sequence[Replica], count: int) -> list[Replica]:
    """Return the replicas that a ReplicaSet deletes first: those that are not ready, then the newest."""
    return sorted(replicas, key=lambda replica: (replica.ready, -replica.created_s))[:count]


class ReplicaSet:
    """The replicas of a Deployment. Life: `run` until it is cancelled, then `stop`."""

    def __init__(
        self,
        name: str,
        folder: Path,
        settings: ReplicaSettings,
        clock: ClusterClock,
        journal: Journal,
        endpoints: Endpoints,
        targets: Callable[[Sequence[Replica]], None],
    ) -> None:
        """`targets` takes the replicas whose metrics can be read."""
        self._name = f"{name}-{''.join(secrets.choice(_SUFFIX_LETTERS) for _ in range(10))}"
        self._folder = folder
        self._settings = settings
        self._clock = clock
        self._journal = journal
        self._endpoints = endpoints
        self._targets = targets
        self.replicas: list[Replica] = []
        self.desired = 0
        self._ending: set[asyncio.Task[None]] = set()
        self._failures = 0
        self._start_after_s = 0.0
        self._published: object = None
        self._to_end: list[Replica] = []

    @property
    def current(self) -> list[Replica]:
        """The replicas that count: neither ended nor terminating."""
        return [replica for replica in self.replicas if replica.state in (ReplicaState.STARTING, ReplicaState.RUNNING)]

    @property
    def ready(self) -> list[Replica]:
        """The replicas that get requests."""
        return [replica for replica in self.current if replica.ready]

    @property
    def pods(self) -> list[Pod]:
        """The replicas as the autoscaler sees them."""
        return [
            Pod(
                name=replica.name,
                phase=PodPhase.RUNNING,
                ready=replica.ready,
                started_s=replica.created_s,
                ready_since_s=replica.ready_since_s,
                deleted=replica.state is ReplicaState.TERMINATING,
            )
            for replica in self.replicas
        ]

    def scale(self, desired: int) -> None:
        """Set the number of replicas; `run` makes it so."""
        self.desired = desired

    def evict(self, name: str) -> bool:
        """Drain a replica, as the drain of its node does; another one replaces it. False if there is none."""
        evicted = [replica for replica in self.current if replica.name == name]
        self._to_end += evicted
        return bool(evicted)

    async def run(self) -> None:
        """Reconcile until cancelled. Raises OSError if a replica cannot be started."""
        while True:
            await self._reconcile()
            await asyncio.sleep(_TICK_S)

    async def stop(self) -> None:
        """End all replicas; those that serve drain first."""
        self.desired = 0
        with suppress(Unavailable):  # a proxy that has ended sends no requests
            await self._drop(self.current)
        await asyncio.gather(*self._ending)

    async def _reconcile(self) -> None:
        before = {replica: (replica.state, replica.ready) for replica in self.current}
        await asyncio.gather(*(replica.probe(self._clock.now_s) for replica in before))
        for replica, (state, ready) in before.items():
            self._record(replica, state, ready)
        evicted, self._to_end = [replica for replica in self._to_end if replica in self.current], []
        surplus = to_delete(
            [replica for replica in self.current if replica not in evicted], self._surplus(len(evicted))
        )
        if evicted or surplus:
            await self._drop([*evicted, *surplus])
        while len(self.current) < self.desired and self._clock.now_s >= self._start_after_s:
            await self._start()
        await self._publish()

    def _surplus(self, evicted: int) -> int:
        return max(len(self.current) - evicted - self.desired, 0)

    def _record(self, replica: Replica, state: ReplicaState, ready: bool) -> None:
        if replica.state is ReplicaState.ENDED and state is not ReplicaState.ENDED:
            self._journal.record("failed", replica.name, f"{replica.failure}; replaced")
            self._ending_task(replica.kill())  # its children, if any are left
            self.replicas.remove(replica)
            if not replica.was_ready:
                self._failures += 1
                delay_s = backoff_s(self._failures, RESTART_BACKOFF_S, MAX_RESTART_BACKOFF_S)
                self._start_after_s = self._clock.now_s + delay_s
        elif replica.ready and not ready:
            self._failures = 0
            took_s = (self._clock.now_s - replica.created_s) / self._clock.speed
            self._journal.record("ready", replica.name, f"{took_s:.1f} s after its start")
        elif ready and not replica.ready:
            self._journal.record("not ready", replica.name, "its readiness probe fails")

    async def _start(self) -> None:
        name = f"{self._name}-{''.join(secrets.choice(_SUFFIX_LETTERS) for _ in range(5))}"
        replica = Replica(name, self._folder, self._settings, self._clock.now_s)
        await replica.start()
        self.replicas.append(replica)
        self._journal.record("started", name, f"process {replica.pid}")

    async def _drop(self, replicas: Sequence[Replica]) -> None:
        """Remove replicas from the proxy, then end them in tasks."""
        for dropped in replicas:
            dropped.state = ReplicaState.TERMINATING
            self._journal.record("draining", dropped.name, "removed from the proxy; SIGTERM follows")
        try:
            await self._publish()
        finally:
            for replica in replicas:
                self._ending_task(self._end(replica))

    async def _end(self, replica: Replica) -> None:
        status = await replica.terminate()
        self.replicas.remove(replica)
        self._journal.record("ended", replica.name, f"exit status {status}")

    def _ending_task(self, ending: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(ending)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _publish(self) -> None:
        """Write the replicas to the proxy and to Prometheus where they have changed."""
        ready, scraped = self.ready, [replica for replica in self.current if replica.state is ReplicaState.RUNNING]
        state = ([replica.name for replica in ready], [replica.name for replica in scraped])
        if state != self._published:
            self._published = state
            self._targets(scraped)
            await self._endpoints.update(ready)
