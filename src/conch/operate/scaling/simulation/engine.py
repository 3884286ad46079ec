"""The simulation: one step is one second. A policy changes the replicas: a fixed number, an HPA or a ScaledObject."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from conch.base.errors import ConfigError
from conch.operate.scaling.autoscaler import MetricReading, Pod, ScalingDecision, ScalingEvent
from conch.operate.scaling.hpa.controller import HpaController
from conch.operate.scaling.hpa.spec import HpaSpec, MetricSpec, MetricType
from conch.operate.scaling.keda.controller import KedaController
from conch.operate.scaling.keda.spec import ScaledObjectSpec
from conch.operate.scaling.simulation.cluster import Cluster
from conch.operate.scaling.simulation.queries import CompiledQuery, History, QueryCompiler
from conch.operate.scaling.simulation.queue_model import LateShares, QueueModel
from conch.operate.scaling.simulation.scenario import Fault, FaultKind, Scenario

PolicySpec: TypeAlias = int | HpaSpec | ScaledObjectSpec
# Whether metrics can be read at a second: "", "down" or "missing".
Availability: TypeAlias = Callable[[int], str]

_DOWN = "unable to fetch metrics: Prometheus does not answer"
_FIRST_RATES_S = 120  # before, no rate has two samples


class AppliedPolicy:
    """A policy in one simulation."""

    def __init__(
        self, spec: PolicySpec, scenario: Scenario, queries: QueryCompiler, availability: Availability
    ) -> None:
        self.spec, self._availability = spec, availability
        self._hpa = HpaController(spec, scenario.settings) if isinstance(spec, HpaSpec) else None
        self._keda = KedaController(spec, scenario.settings) if isinstance(spec, ScaledObjectSpec) else None
        self._utilization = queries.compile("rate(conch_instance_busy_seconds_total[1m]) / conch_instances")
        self._series: list[tuple[MetricSpec, CompiledQuery]] = []
        if isinstance(spec, HpaSpec):
            self._series = [(metric, self._compile(queries, metric)) for metric in spec.metrics]
        elif isinstance(spec, ScaledObjectSpec):
            self._series = [(trigger.metric, self._trigger(queries, trigger.query)) for trigger in spec.triggers]
        self.sync_s = int(scenario.settings.sync_period_s)
        self.poll_s = int(spec.polling_interval_s) if isinstance(spec, ScaledObjectSpec) else 0

    def decide(self, now_s: int, replicas: int, pods: Sequence[Pod]) -> ScalingDecision | None:
        """Return the decision of a second, or None where none is due."""
        syncs = now_s % self.sync_s == 0
        if self._hpa is not None:
            return self._hpa.sync(now_s, replicas, pods, self._readings(now_s, pods)) if syncs else None
        if self._keda is None:
            return None
        decision = None
        if now_s % self.poll_s == 0:
            decision = self._keda.poll(now_s, replicas, self._readings(now_s, pods))
            if decision.desired != replicas:
                return decision
        return self._keda.sync(now_s, replicas, pods, self._readings(now_s, pods)) if syncs else decision

    def _readings(self, now_s: int, pods: Sequence[Pod]) -> list[MetricReading]:
        return [self._reading(metric, series, now_s, pods) for metric, series in self._series]

    def _reading(self, metric: MetricSpec, series: CompiledQuery, now_s: int, pods: Sequence[Pod]) -> MetricReading:
        is_resource = metric.type in {MetricType.RESOURCE, MetricType.CONTAINER_RESOURCE}
        # The metrics server, which serves resources, does not depend on Prometheus.
        state = "" if is_resource else self._availability(now_s)
        if state == "down":
            return MetricReading(error=_DOWN)
        value = None if state == "missing" else series.evaluate(now_s)
        if metric.type is MetricType.EXTERNAL and self._keda is not None:
            return MetricReading(value=value)
        if value is None:
            return MetricReading(error=f"unable to get metric {metric.name}: no metrics returned from the API")
        if metric.type in {MetricType.OBJECT, MetricType.EXTERNAL}:
            return MetricReading(value=value)
        return MetricReading(by_pod={pod.name: value for pod in pods if pod.name == "ready"})

    def _compile(self, queries: QueryCompiler, metric: MetricSpec) -> CompiledQuery:
        if metric.type in {MetricType.RESOURCE, MetricType.CONTAINER_RESOURCE}:
            return self._utilization
        series = queries.compile(metric.name)
        if metric.type is MetricType.PODS and not series.per_pod:
            raise ConfigError(f"metric '{metric.name}': a Pods metric needs one series for each pod")
        if metric.type is not MetricType.PODS and series.per_pod:
            return queries.compile(f"sum({metric.name})")
        return series

    def _trigger(self, queries: QueryCompiler, query: str) -> CompiledQuery:
        if not query:
            return self._utilization
        series = queries.compile(query)
        if series.per_pod:
            raise ConfigError(
                f"query '{query}' returns one series for each pod, and KEDA accepts only one: use sum(...)"
            )
        return series


@dataclass(frozen=True, slots=True)
class SimulationRun:
    """What happened in each second, and each change of the wanted replicas with its reason."""

    name: str
    scenario: Scenario
    ready: NDArray[np.int64]
    wanted: NDArray[np.int64]
    inside: NDArray[np.float64]  # requests in all replicas
    lost: NDArray[np.float64]  # rejected, without a replica, or in one that was killed
    misses: NDArray[np.float64]  # answered later than the objective, or lost
    usage: NDArray[np.float64]  # of the first metric, as the autoscaler saw it; NaN where it saw none
    events: tuple[ScalingEvent, ...]
    reasons: Mapping[str, int]  # how often each reason was given

    @property
    def miss_share(self) -> float:
        """The share of requests that missed the objective."""
        return float(self.misses.sum() / max(self.scenario.traffic.requests, 1e-9))

    @property
    def replica_hours(self) -> float:
        """Hours of all replicas, starting ones included."""
        return float(self.wanted.sum() / 3600)

    @property
    def max_inside(self) -> float:
        """The most requests that were in all replicas together."""
        return float(self.inside.max())

    @property
    def cost(self) -> float:
        """Missed requests in percent times replica-hours: what a policy is judged by."""
        return 100 * self.miss_share * self.replica_hours

    @property
    def meets_objective(self) -> bool:
        """Whether enough requests were answered in time."""
        return self.miss_share <= 1 - self.scenario.objective + 1e-12


def simulate(name: str, policy: PolicySpec, scenario: Scenario) -> SimulationRun:
    """Run a scenario under a policy. Raises ConfigError for metrics that the simulation does not have."""
    return _Engine(policy, scenario).run(name)


class _Engine:
    """State of one run."""

    def __init__(self, policy: PolicySpec, scenario: Scenario) -> None:
        self._scenario = scenario
        self._queue = QueueModel(scenario.service)
        self._mean_s = scenario.service.mean_s  # of an execution, which takes long to compute
        self._history = History()
        compiler = QueryCompiler(self._history, scenario.service, scenario.timing)
        self._policy = AppliedPolicy(policy, scenario, compiler, self._availability)
        initial = policy if isinstance(policy, int) else scenario.initial_replicas
        self._cluster = Cluster(scenario.cold_start, scenario.timing.scrape_interval_s, initial)
        self._faults: dict[int, list[Fault]] = {}
        for fault in scenario.faults:
            self._faults.setdefault(fault.at_s, []).append(fault)
        self._outages = [
            (
                outage.at_s,
                outage.at_s + outage.duration_s,
                "down" if outage.kind is FaultKind.PROMETHEUS_DOWN else "missing",
            )
            for outage in scenario.faults
            if outage.kind in {FaultKind.PROMETHEUS_DOWN, FaultKind.METRIC_MISSING}
        ]
        self._inside = 0.0  # requests in all replicas
        self._alive_served = self._served = 0.0  # per pod: by those alive, and since the start
        self._events: list[ScalingEvent] = []
        self._reasons: dict[str, int] = {}

    def run(self, name: str) -> SimulationRun:
        rates = self._scenario.traffic.rates.tolist()
        columns: Sequence[list[float]] = ([], [], [], [], [])
        for now_s, rate in enumerate(rates):
            lost = self._apply_faults(now_s)
            became = self._cluster.advance(now_s)
            self._share_age(became)
            lost += self._serve(rate)
            usage = self._decide(now_s)
            for column, value in zip(
                columns, (self._cluster.ready, self._cluster.wanted, self._inside, lost, usage), strict=True
            ):
                column.append(value)
        ready, wanted, inside, lost_column, usage_column = (np.array(values) for values in columns)
        misses = self._misses(ready, inside, lost_column)
        return SimulationRun(
            name,
            self._scenario,
            ready.astype(np.int64),
            wanted.astype(np.int64),
            inside,
            lost_column,
            misses,
            usage_column,
            tuple(self._events),
            self._reasons,
        )

    def _serve(self, rate: float) -> float:
        """Advance the queues by a second; return the requests lost."""
        service, ready = self._scenario.service, self._cluster.ready
        if ready == 0:
            lost = rate + self._inside
            self._inside = 0.0
            self._history.append(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0.0)
            return lost
        inside, served, utilization = self._queue.step(self._inside / ready, rate / ready)
        running = min(utilization * service.servers, inside)
        waiting = inside - running
        excess = max(waiting - self._scenario.max_queue, 0.0)
        if excess:
            inside, waiting = inside - excess, waiting - excess
        self._inside = inside * ready
        batch = min(max(inside / service.servers, 1.0), service.max_batch) if service.max_batch > 1 else 1.0
        # By Little's law the waits of a second add up to the requests that wait in it.
        self._served += served
        self._alive_served += served
        self._history.append(
            served,
            waiting,
            waiting + served * service.first_token_s,
            served * self._mean_s * service.length(batch),
            served / batch,
            utilization,
            waiting,
            running,
            ready,
            self._alive_served / self._served if self._served else 1.0,
        )
        return excess * ready

    def _share_age(self, became: int) -> None:
        """Lower the counters of the average pod: those of new pods begin at zero."""
        if became:
            self._alive_served *= (self._cluster.ready - became) / self._cluster.ready

    def _decide(self, now_s: int) -> float:
        cluster = self._cluster
        due = now_s % self._policy.sync_s == 0 or (self._policy.poll_s and now_s % self._policy.poll_s == 0)
        decision = self._policy.decide(now_s, cluster.wanted, cluster.pods(now_s)) if due else None
        if decision is None:
            return float("nan")
        if now_s >= _FIRST_RATES_S:
            self._reasons[decision.reason] = self._reasons.get(decision.reason, 0) + 1
        if decision.desired != cluster.wanted:
            self._events.append(ScalingEvent(now_s, cluster.wanted, decision.desired))
            before = cluster.ready
            ended = cluster.scale(now_s, decision.desired)
            if ended and before:
                # They drain: what they hold is answered, outside of the queues that remain.
                self._inside *= (before - ended) / before
        usage = decision.usage[0] if decision.usage else None
        return float("nan") if usage is None else usage

    def _apply_faults(self, now_s: int) -> float:
        """Return the requests lost."""
        lost = 0.0
        for fault in self._faults.get(now_s, ()):
            before, start = self._cluster.ready, self._scenario.cold_start
            if fault.kind is FaultKind.NEVER_READY:
                self._cluster.stick(fault.count)
            elif fault.kind in {FaultKind.KILL, FaultKind.DRAIN} and before:
                is_kill = fault.kind is FaultKind.KILL
                # A container that died is restarted where its image is.
                ended = self._cluster.lose(now_s, fault.count, start.total_s - (start.pull_s if is_kill else 0))
                held = self._inside * ended / before
                self._inside -= held
                lost += held if is_kill else 0.0
        return lost

    def _availability(self, now_s: int) -> str:
        for start_s, end_s, state in self._outages:
            if start_s <= now_s < end_s:
                return state
            # After an outage a rate needs two scrapes.
            if state == "down" and end_s <= now_s < end_s + 2 * self._scenario.timing.scrape_interval_s:
                return "missing"
        return ""

    def _misses(
        self, ready: NDArray[np.float64], inside: NDArray[np.float64], lost: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return the requests of each second that are answered too late, and those lost."""
        scenario, rates = self._scenario, self._scenario.traffic.rates
        replicas = np.maximum(ready, 1)
        service = scenario.service
        batch = np.clip(inside / replicas / service.servers, 1.0, service.max_batch)
        backlog_s, utilization = self._queue.backlog(inside / replicas, rates / replicas)
        late_shares = LateShares(service, scenario.slo_s, first_token=scenario.slo_is_first_token)
        late = late_shares.at(utilization, backlog_s, 1 + (batch - 1) * service.batch_cost)
        served = np.where(ready > 0, np.maximum(rates - lost, 0.0), 0.0)
        return np.asarray(served * late + lost, dtype=np.float64)
