"""A fleet: replicas, proxy, Prometheus, the API of custom metrics, the autoscaler and load. Its composition root."""

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Literal

from conch.base.errors import ConfigError, Unavailable
from conch.operate.fleet.custom_metrics import AdapterRule, ApiServer
from conch.operate.fleet.journal import FleetEvent, FleetSample, Journal
from conch.operate.fleet.load_generator import ClientProtocol, LoadGenerator, LoadProfile
from conch.operate.fleet.prometheus import PrometheusProcess
from conch.operate.fleet.proxies import HaproxyProxy, NginxProxy, Proxy
from conch.operate.fleet.replicas import ReplicaSet, ReplicaSettings
from conch.operate.fleet.scaling_loop import FleetPolicy, LoopContext, ScalingLoop
from conch.operate.fleet.timing import ClusterClock, Timing

_SAMPLE_S = 0.5
_POLL_S = 0.1
_READY_TIMEOUT_S = 300.0
_PROMETHEUS_RESTART_S = 5.0
_LATENCY_WINDOW_S = 5.0
# Beside the replicas of the object: those that drain while others replace them.
_SURPLUS_SLOTS = 4
# Cluster seconds after the load in which the replicas must be back at the minimum: windows, periods and syncs.
_SETTLE_S = 600.0

ProxyName = Literal["haproxy", "nginx"]


@dataclass(frozen=True, slots=True)
class FleetPorts:
    """Where the parts listen on 127.0.0.1. 0 is any free port."""

    http: int = 0
    grpc: int = 0
    prometheus: int = 0
    api: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """A fleet. `folder` is for configurations, logs and data; `labels` are those of the pods."""

    name: str
    namespace: str
    labels: Mapping[str, str]
    folder: Path
    programs: Mapping[str, str]
    policy: FleetPolicy
    adapter_rules: Mapping[str, AdapterRule]
    replica: ReplicaSettings
    replicas: int = 1
    proxy: ProxyName = "haproxy"
    ports: FleetPorts = field(default_factory=FleetPorts)
    timing: Timing = field(default_factory=Timing)


class Fleet:
    """Life: `start`, then `run` with or without load, `stop` always."""

    def __init__(self, settings: FleetSettings, on_event: Callable[[FleetEvent], None]) -> None:
        self.settings = settings
        self.clock = ClusterClock(settings.timing)
        self.journal = Journal(lambda: self.clock.elapsed_s, on_event)
        ports = settings.ports
        self.ports = FleetPorts(
            ports.http or _free_port(), ports.grpc or _free_port(), ports.prometheus or _free_port(), ports.api
        )
        self.prometheus = PrometheusProcess(
            settings.programs["prometheus"],
            settings.folder,
            self.ports.prometheus,
            settings.timing,
            job=settings.name,
            namespace=settings.namespace,
        )
        self.proxy = self._make_proxy()
        self.replica_set = ReplicaSet(
            settings.name,
            settings.folder,
            settings.replica,
            self.clock,
            self.journal,
            self.proxy,
            self.prometheus.set_targets,
        )
        self.api = ApiServer(
            ports.api,
            settings.adapter_rules,
            self.prometheus.url,
            labels=settings.labels,
            shorten=settings.timing.shortened_query,
            pods=lambda: [replica.name for replica in self.replica_set.replicas],
            state=self.state,
            evict=self.replica_set.evict,
        )
        self.autoscaler: ScalingLoop
        self.load: LoadGenerator | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def _make_proxy(self) -> Proxy:
        settings, ports = self.settings, (self.ports.http, self.ports.grpc)
        program = settings.programs[settings.proxy]
        if settings.proxy == "nginx":
            return NginxProxy(program, settings.folder, ports)
        slots = max(settings.policy.hpa.max_replicas, settings.replicas) + _SURPLUS_SLOTS
        return HaproxyProxy(program, settings.folder, ports, slots)

    @property
    def address(self) -> Mapping[str, str]:
        """`host:port` of the proxy, by protocol."""
        return {"http": f"127.0.0.1:{self.ports.http}", "grpc": f"127.0.0.1:{self.ports.grpc}"}

    async def start(self) -> None:
        """Start everything and wait until a replica is ready. Raises ConfigError, Unavailable, OSError."""
        _check_free(self.settings.ports)
        await self.prometheus.start()
        await self.proxy.start()
        self.api.start()
        settings = self.settings
        self.autoscaler = settings.policy.loop(
            LoopContext(
                self.replica_set,
                self.prometheus,
                self.api.url,
                settings.namespace,
                settings.labels,
                settings.timing,
                self.clock,
                self.journal,
            )
        )
        self.replica_set.scale(settings.replicas)
        self._spawn(self.replica_set.run())
        deadline = monotonic() + _READY_TIMEOUT_S
        while not self.replica_set.ready:
            self._check()
            if monotonic() > deadline:
                raise Unavailable(f"no replica is ready after {_READY_TIMEOUT_S:.0f} s; see {settings.folder}")
            await asyncio.sleep(_POLL_S)
        for part in (self.autoscaler.run(), self._supervise_prometheus(), self._sample()):
            self._spawn(part)

    async def run(self) -> None:
        """Run until cancelled. Raises what ends a part: Unavailable, OSError."""
        while True:
            self._check()
            await asyncio.sleep(_POLL_S)

    async def run_load(self, profile: LoadProfile, protocol: ClientProtocol, model: str) -> None:
        """Send the requests of a profile. Raises Unavailable."""
        self.load = LoadGenerator(
            profile, protocol, self.address[protocol], model, self.settings.folder, _LATENCY_WINDOW_S
        )
        await self.load.start()
        loading = asyncio.ensure_future(self.load.run())
        try:
            while not loading.done():
                self._check()
                await asyncio.wait([loading], timeout=_POLL_S)
            loading.result()
        finally:
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)

    async def settle(self) -> bool:
        """Wait, under the last stage of the load, for the minimum of replicas. Returns whether it was reached."""
        deadline = self.clock.now_s + _SETTLE_S
        while self.clock.now_s < deadline:
            self._check()
            if len(self.replica_set.replicas) == self.settings.policy.min_replicas == self.replica_set.desired:
                return True
            await asyncio.sleep(_POLL_S)
        return False

    async def stop_load(self) -> None:
        """Wait for the answers in flight; then the counts are final."""
        if self.load is not None:
            await self.load.stop()

    async def stop(self) -> None:
        """Drain and end everything."""
        await self.stop_load()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.replica_set.stop()
        self.api.stop()
        for part in (self.proxy, self.prometheus):
            if part.child.started:
                await part.stop()

    def state(self) -> Mapping[str, Any]:
        """Return the state, as `kubectl get pods,hpa` shows it."""
        replicas = self.replica_set
        return {
            "name": self.settings.name,
            "namespace": self.settings.namespace,
            "speed": self.settings.timing.speed,
            "proxy": {"kind": self.settings.proxy, "pid": self.proxy.child.pid, **self.address},
            "prometheus": {"url": self.prometheus.url, "pid": self.prometheus.child.pid},
            "api": self.api.url,
            "replicas": {
                "desired": replicas.desired,
                "current": len(replicas.current),
                "ready": len(replicas.ready),
            },
            "pods": [
                {
                    "name": replica.name,
                    "state": replica.state.value,
                    "ready": replica.ready,
                    "pid": replica.pid,
                    "ports": replica.ports,
                }
                for replica in replicas.replicas
            ],
            "horizontalPodAutoscaler": self.autoscaler.state(),
        }

    def _spawn(self, part: Coroutine[None, None, None]) -> None:
        self._tasks.append(asyncio.ensure_future(part))

    def _check(self) -> None:
        """Raise the error of a part that has ended."""
        for task in self._tasks:
            if task.done():
                task.result()
        if self.proxy.child.status is not None:
            raise Unavailable(f"{self.settings.proxy} ended with status {self.proxy.child.status}")

    async def _supervise_prometheus(self) -> None:
        while True:
            status = await self.prometheus.child.wait()
            message = f"ended with status {status}; restarting in {_PROMETHEUS_RESTART_S:.0f} s"
            self.journal.record("failed", "prometheus", message)
            await asyncio.sleep(_PROMETHEUS_RESTART_S)
            try:
                await self.prometheus.start()
            except Unavailable as error:
                self.journal.record("failed", "prometheus", str(error))
            else:
                self.journal.record("started", "prometheus", f"process {self.prometheus.child.pid}")

    async def _sample(self) -> None:
        while True:
            self.journal.samples.append(self.sample())
            await asyncio.sleep(_SAMPLE_S)

    def sample(self) -> FleetSample:
        """Return the state of now as a sample."""
        replicas, load = self.replica_set, self.load
        state = (
            self.clock.elapsed_s,
            replicas.desired,
            len(replicas.current),
            len(replicas.ready),
            self.autoscaler.usage,
        )
        if load is None:
            return FleetSample(*state)
        answers = load.recent
        return FleetSample(*state, load.clients, answers.rate, answers.p50_s, answers.p99_s, load.answered, load.failed)


def _check_free(ports: FleetPorts) -> None:
    """Raise ConfigError if a given port is in use."""
    for name, port in asdict(ports).items():
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            raise ConfigError(f"cannot listen on port {port}: {reason}; --{name}-port chooses another") from None


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


def model_names(repositories: Sequence[Path]) -> list[str]:
    """Return the models of repositories: their folders with versions."""
    return sorted(
        path.name
        for root in repositories
        for path in root.iterdir()
        if path.is_dir() and any(version.name.isdecimal() for version in path.iterdir())
    )
