"""The loop of an autoscaler: read the metrics of its object, decide, scale replicas, and report as Kubernetes does."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from conch.base.errors import ConfigError, Unavailable
from conch.base.http.client import HttpClient, HttpSettings
from conch.base.kubernetes.objects import listed
from conch.operate.fleet.custom_metrics import GROUP, VERSIONS
from conch.operate.fleet.journal import Journal
from conch.operate.fleet.prometheus import PrometheusProcess
from conch.operate.fleet.replicas import ReplicaSet
from conch.operate.fleet.timing import SYNC_PERIOD_S, ClusterClock, Timing
from conch.operate.scaling.autoscaler import MetricReading, ScalingDecision
from conch.operate.scaling.hpa.controller import HpaController
from conch.operate.scaling.hpa.spec import HpaSpec, MetricSpec, MetricType, read_hpa
from conch.operate.scaling.keda.controller import KedaController
from conch.operate.scaling.keda.spec import ScaledObjectSpec, Trigger, read_scaled_object
from conch.operate.scaling.object_reader import format_quantity, parse_quantity

_FAILED = "FailedGet"
_TIMEOUT_S = 5.0
_KINDS = ("HorizontalPodAutoscaler", "ScaledObject")


@dataclass(frozen=True, slots=True)
class LoopContext:
    """What a loop reads and scales. `labels` are those of the pods."""

    replicas: ReplicaSet
    prometheus: PrometheusProcess
    api_url: str
    namespace: str
    labels: Mapping[str, str]
    timing: Timing
    clock: ClusterClock
    journal: Journal


class ScalingLoop(ABC):
    """One autoscaler. Life: `run` until cancelled. `decision` is the last one of the HorizontalPodAutoscaler.

    Cluster seconds go into the algorithms, so that all windows and periods of the object hold as they are.
    """

    def __init__(self, hpa: HpaSpec, context: LoopContext) -> None:
        self.hpa = hpa
        self.context = context
        self.decision: ScalingDecision | None = None
        self._was_reason = ""

    @abstractmethod
    async def decide(self) -> ScalingDecision:
        """Read the metrics, and return the decision for now."""

    @property
    def usage(self) -> float | None:
        """The average per pod of the first metric, None where it is `<unknown>`."""
        return self.decision.usage[0] if self.decision is not None and self.decision.usage else None

    @property
    def targets_text(self) -> str:
        """The column TARGETS of `kubectl get hpa`."""
        usages: Sequence[float | None] = self.decision.usage if self.decision is not None else ()
        texts = ["<unknown>" if usage is None else format_quantity(usage) for usage in usages]
        texts += ["<unknown>"] * (len(self.hpa.metrics) - len(texts))
        return ", ".join(
            f"{text}/{format_quantity(metric.target)}" for text, metric in zip(texts, self.hpa.metrics, strict=True)
        )

    async def run(self) -> None:
        """Decide and scale every sync period, until cancelled."""
        while True:
            await asyncio.sleep(self.context.timing.shortened_s(SYNC_PERIOD_S))
            await self.sync()

    async def sync(self) -> None:
        """Decide and scale."""
        replicas, journal = self.context.replicas, self.context.journal
        before, subject = replicas.desired, f"hpa/{self.hpa.name}"
        self.decision = decision = await self.decide()
        if decision.desired != before:
            journal.record("scaled", subject, f"{before} → {decision.desired}: {decision.message}")
            replicas.scale(decision.desired)
        elif decision.reason.startswith(_FAILED) and decision.reason != self._was_reason:
            journal.record("metric missing", subject, f"{decision.reason}: {decision.message}")
        elif self._was_reason.startswith(_FAILED) and not decision.reason.startswith(_FAILED):
            journal.record("metric read", subject, "all metrics can be read")
        self._was_reason = decision.reason

    def state(self) -> Mapping[str, Any]:
        """Return what `kubectl describe hpa` shows."""
        conditions = self.decision.conditions if self.decision is not None else ()
        return {
            "name": self.hpa.name,
            "targets": self.targets_text,
            "minReplicas": self.hpa.min_replicas,
            "maxReplicas": self.hpa.max_replicas,
            "conditions": [
                {
                    "type": condition.type,
                    "status": str(condition.status),
                    "reason": condition.reason,
                    "message": condition.message,
                }
                for condition in conditions
            ],
        }


def check_hpa(spec: HpaSpec) -> None:
    """Raise ConfigError unless the fleet has all metrics of a HorizontalPodAutoscaler."""
    for metric in spec.metrics:
        if metric.type is not MetricType.PODS:
            raise ConfigError(
                f"a metric of type {metric.type.value} is not supported by conch fleet, whose replicas are processes "
                "without resource metrics; use metrics of type Pods, such as triton:queue_compute:ratio"
            )


class HpaLoop(ScalingLoop):
    """One HorizontalPodAutoscaler."""

    def __init__(self, spec: HpaSpec, context: LoopContext) -> None:
        super().__init__(spec, context)
        self._controller = HpaController(spec)

    async def decide(self) -> ScalingDecision:
        context = self.context
        readings = await asyncio.gather(
            *(
                asyncio.to_thread(read_metric, context.api_url, context.namespace, metric, context.labels)
                for metric in self.hpa.metrics
            )
        )
        replicas = context.replicas
        # status.replicas of the Deployment counts the pods that exist.
        return self._controller.sync(
            context.clock.now_s, replicas.desired, replicas.pods, readings, status_replicas=len(replicas.current)
        )


def read_metric(api_url: str, namespace: str, metric: MetricSpec, labels: Mapping[str, str]) -> MetricReading:
    """Return what the API of custom metrics answers for a metric of pods, as the controller asks for it."""
    place = f"/apis/{GROUP}/{VERSIONS[0]}/namespaces/{namespace}/pods/*/{quote(metric.name, safe=':')}"
    selector = urlencode({"labelSelector": ",".join(f"{name}={value}" for name, value in labels.items())})
    try:
        client = HttpClient(HttpSettings.once(_TIMEOUT_S, environment_proxies=False))
        with client.open("GET", f"{api_url}{place}?{selector}") as response:
            document = response.json()
            if response.status != 200:
                raise Unavailable(str(document.get("message", f"HTTP status {response.status}")))
    except Unavailable as error:
        prefix = f"unable to get metric {metric.name}: unable to fetch metrics from custom metrics API"
        return MetricReading(error=f"{prefix}: {error.message}")
    values = {item["describedObject"]["name"]: parse_quantity(item["value"]) for item in document["items"]}
    return MetricReading(by_pod={name: value for name, value in values.items() if value is not None})


def check_scaled_object(spec: ScaledObjectSpec) -> None:
    """Raise ConfigError unless the fleet has all triggers of a ScaledObject."""
    for trigger in spec.triggers:
        if not trigger.query:
            raise ConfigError(
                f"a trigger of type {trigger.metric.name} is not supported by conch fleet, whose replicas are "
                "processes without resource metrics; use triggers of the type prometheus"
            )


class KedaLoop(ScalingLoop):
    """One ScaledObject, and the HorizontalPodAutoscaler that KEDA creates for it."""

    def __init__(self, spec: ScaledObjectSpec, context: LoopContext) -> None:
        super().__init__(spec.hpa(), context)
        self._spec = spec
        self._keda = KedaController(spec, created_s=context.clock.now_s)
        self._next_poll_s = context.clock.now_s

    async def decide(self) -> ScalingDecision:
        replicas, now_s = self.context.replicas, self.context.clock.now_s
        readings = await asyncio.gather(*(self._read(trigger) for trigger in self._spec.triggers))
        if now_s >= self._next_poll_s:
            self._next_poll_s = now_s + self._spec.polling_interval_s
            polled = self._keda.poll(now_s, replicas.desired, readings)
            if polled.desired != replicas.desired or replicas.desired == 0:
                return polled
        return self._keda.sync(now_s, replicas.desired, replicas.pods, readings)

    async def _read(self, trigger: Trigger) -> MetricReading:
        query = self.context.timing.shortened_query(trigger.query)
        try:
            rows = await self.context.prometheus.query(query)
        except Unavailable as error:
            return MetricReading(error=f"unable to get external metric {trigger.metric.name}: {error}")
        if len(rows) > 1:
            message = f"unable to get external metric {trigger.metric.name}: the query returned {len(rows)} series"
            return MetricReading(error=message)
        return MetricReading(value=rows[0].value if rows else None)


@dataclass(frozen=True, slots=True)
class FleetPolicy:
    """A policy: the object, the HorizontalPodAutoscaler that it is or creates, and its namespace."""

    spec: HpaSpec | ScaledObjectSpec
    hpa: HpaSpec
    namespace: str = "default"

    @property
    def min_replicas(self) -> int:
        """The replicas without load."""
        return self.spec.min_replicas

    @property
    def release(self) -> str:
        """The name of the workload that it scales."""
        return self.hpa.target[1]

    def loop(self, context: LoopContext) -> ScalingLoop:
        """Return its loop."""
        return KedaLoop(self.spec, context) if isinstance(self.spec, ScaledObjectSpec) else HpaLoop(self.spec, context)


def read_policy(documents: Sequence[Any]) -> FleetPolicy:
    """Return the only HorizontalPodAutoscaler or ScaledObject of documents. Raises ConfigError."""
    autoscalers = [document for document in listed(documents) if document.get("kind") in _KINDS]
    if len(autoscalers) != 1:
        raise ConfigError(f"{len(autoscalers)} objects of the kinds {' and '.join(_KINDS)}, expected one")
    [document] = autoscalers
    namespace = str((document.get("metadata") or {}).get("namespace") or "default")
    if document["kind"] == "ScaledObject":
        scaled_object = read_scaled_object(document)
        check_scaled_object(scaled_object)
        return FleetPolicy(scaled_object, scaled_object.hpa(), namespace)
    hpa = read_hpa(document)
    check_hpa(hpa)
    return FleetPolicy(hpa, hpa, namespace)
