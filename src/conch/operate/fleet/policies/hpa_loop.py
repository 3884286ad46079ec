"""The controller of a HorizontalPodAutoscaler: it reads the API of custom metrics over HTTP, as Kubernetes' does."""

import asyncio
from collections.abc import Mapping
from urllib.parse import quote, urlencode

from conch.base.errors import ConfigError, Unavailable
from conch.base.http.client import HttpClient, HttpSettings
from conch.operate.fleet.metrics.custom_metrics import GROUP, VERSIONS
from conch.operate.fleet.policies.scaling_loop import LoopContext, ScalingLoop
from conch.operate.scaling.autoscaler import MetricReading, ScalingDecision
from conch.operate.scaling.hpa.controller import HpaController
from conch.operate.scaling.hpa.spec import HpaSpec, MetricSpec, MetricType
from conch.operate.scaling.quantity import parse_quantity

_TIMEOUT_S = 5.0


def check_hpa(spec: HpaSpec) -> None:
    """Raise ConfigError unless the fleet has all metrics of a HorizontalPodAutoscaler."""
    for each in spec.metrics:
        if each.type is not MetricType.PODS:
            raise ConfigError(
                f"a metric of type {each.type.value} is not supported by conch fleet, whose replicas are processes "
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
                asyncio.to_thread(read_metric, context.api_url, context.namespace, each, context.labels)
                for each in self.hpa.metrics
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
    values = {each["describedObject"]["name"]: parse_quantity(each["value"]) for each in document["items"]}
    return MetricReading(by_pod={name: value for name, value in values.items() if value is not None})
