"""What decides the replicas in a simulation: a fixed number, a HorizontalPodAutoscaler or a ScaledObject."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from conch.base.errors import ConfigError
from conch.operate.scaling.autoscaler import MetricReading, Pod, ScalingDecision
from conch.operate.scaling.hpa.controller import HpaController
from conch.operate.scaling.hpa.spec import HpaSpec, MetricSpec, MetricType
from conch.operate.scaling.keda.controller import KedaController
from conch.operate.scaling.keda.spec import ScaledObjectSpec
from conch.operate.scaling.simulation.queries import CompiledQuery, QueryCompiler
from conch.operate.scaling.simulation.scenario import Scenario

PolicySpec: TypeAlias = int | HpaSpec | ScaledObjectSpec
# Whether metrics can be read at a second: "", "down" or "missing".
Availability: TypeAlias = Callable[[int], str]

_DOWN = "unable to fetch metrics: Prometheus does not answer"


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
