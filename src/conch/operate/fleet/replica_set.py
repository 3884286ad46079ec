"""Keep a number of replicas: start, replace, drain and end them, in the proxy and in the targets of Prometheus."""

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from conch.base.errors import Unavailable
from conch.base.pacing import backoff_s
from conch.operate.fleet.replica import Replica, ReplicaSettings, ReplicaState
from conch.operate.fleet.report.journal import Journal
from conch.operate.fleet.timing import MAX_RESTART_BACKOFF_S, RESTART_BACKOFF_S, ClusterClock
from conch.operate.scaling.autoscaler import Pod, PodPhase

_TICK_S = 0.2
# Letters of the suffixes of pods' names: no vowels, no digits that look like letters.
_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"


class Endpoints(Protocol):
    """What sends requests to replicas that are ready."""

    async def update(self, ready: Sequence[Replica]) -> None:
        """Send new requests to these replicas only; requests in flight elsewhere continue."""


def to_delete(replicas: Sequence[Replica], count: int) -> list[Replica]:
    """Return the replicas that a ReplicaSet deletes first: those that are not ready, then the newest."""
    return sorted(replicas, key=lambda each: (each.ready, -each.created_s))[:count]


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
        """Assign. `targets` takes the replicas whose metrics can be read."""
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
        return [each for each in self.replicas if each.state in (ReplicaState.STARTING, ReplicaState.RUNNING)]

    @property
    def ready(self) -> list[Replica]:
        """The replicas that get requests."""
        return [each for each in self.current if each.ready]

    @property
    def pods(self) -> list[Pod]:
        """The replicas as the autoscaler sees them."""
        return [
            Pod(
                name=each.name,
                phase=PodPhase.RUNNING,
                ready=each.ready,
                started_s=each.created_s,
                ready_since_s=each.ready_since_s,
                deleted=each.state is ReplicaState.TERMINATING,
            )
            for each in self.replicas
        ]

    def scale(self, desired: int) -> None:
        """Set the number of replicas; `run` makes it so."""
        self.desired = desired

    def evict(self, name: str) -> bool:
        """Drain a replica, as the drain of its node does; another one replaces it. False if there is none."""
        found = [each for each in self.current if each.name == name]
        self._to_end += found
        return bool(found)

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
        before = {each: (each.state, each.ready) for each in self.current}
        await asyncio.gather(*(each.probe(self._clock.now_s) for each in before))
        for each, (state, ready) in before.items():
            self._record(each, state, ready)
        evicted, self._to_end = [each for each in self._to_end if each in self.current], []
        surplus = to_delete([each for each in self.current if each not in evicted], self._surplus(len(evicted)))
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
        """Take replicas out of the proxy, then end them beside the loop."""
        for each in replicas:
            each.state = ReplicaState.TERMINATING
            self._journal.record("draining", each.name, "removed from the proxy; SIGTERM follows")
        try:
            await self._publish()
        finally:
            for each in replicas:
                self._ending_task(self._end(each))

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
        ready, scraped = self.ready, [each for each in self.current if each.state is ReplicaState.RUNNING]
        state = ([each.name for each in ready], [each.name for each in scraped])
        if state != self._published:
            self._published = state
            self._targets(scraped)
            await self._endpoints.update(ready)
