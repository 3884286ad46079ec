"""The autoscaler's loop: read metrics over HTTP, decide with the algorithm of the HPA, scale the replicas."""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from conch.errors import ConfigError
from conch.fleet.metrics.custom_metrics import GROUP, VERSIONS
from conch.fleet.replica_set import ReplicaSet
from conch.fleet.report.journal import Journal
from conch.fleet.timing import SYNC_PERIOD_S, ClusterClock, Timing
from conch.scaling.autoscaler import MetricReading, ScalingDecision
from conch.scaling.hpa.controller import HpaController
from conch.scaling.hpa.spec import HpaSpec, MetricSpec, MetricType
from conch.scaling.quantity import format_quantity, parse_quantity

_TIMEOUT_S = 5.0
_SUBJECT = "horizontal-pod-autoscaler"


def check_supported(spec: HpaSpec) -> None:
    """Raise ConfigError unless the fleet has all metrics of a HorizontalPodAutoscaler."""
    for each in spec.metrics:
        if each.type is not MetricType.PODS:
            raise ConfigError(
                f"a metric of type {each.type.value} is not supported by conch fleet, whose replicas are processes "
                "without resource metrics; use metrics of type Pods, such as triton:queue_compute:ratio"
            )


def read_metric(api_url: str, namespace: str, metric: MetricSpec, labels: Mapping[str, str]) -> MetricReading:
    """Return what the API of custom metrics answers for a metric of pods, as the controller asks for it."""
    place = f"/apis/{GROUP}/{VERSIONS[0]}/namespaces/{namespace}/pods/*/{quote(metric.name, safe=':')}"
    selector = urlencode({"labelSelector": ",".join(f"{name}={value}" for name, value in labels.items())})
    try:
        with urllib.request.urlopen(f"{api_url}{place}?{selector}", timeout=_TIMEOUT_S) as response:  # noqa: S310
            document = json.load(response)
    except (OSError, ValueError) as error:
        prefix = f"unable to get metric {metric.name}: unable to fetch metrics from custom metrics API"
        return MetricReading(error=f"{prefix}: {_message(error)}")
    values = {each["describedObject"]["name"]: parse_quantity(each["value"]) for each in document["items"]}
    return MetricReading(by_pod={name: value for name, value in values.items() if value is not None})


def _message(error: Exception) -> str:
    """Return the message of a Status, or of the error itself."""
    if isinstance(error, urllib.error.HTTPError):
        try:
            return str(json.load(error)["message"])
        except (ValueError, KeyError, OSError):
            pass
    return str(error)


class HpaLoop:
    """One HorizontalPodAutoscaler. Life: `run` until cancelled. `decision` is the last one, `target` its goal."""

    def __init__(
        self,
        spec: HpaSpec,
        replicas: ReplicaSet,
        *,
        api_url: str,
        namespace: str,
        labels: Mapping[str, str],
        timing: Timing,
        clock: ClusterClock,
        journal: Journal,
    ) -> None:
        """Assign. Raises ConfigError for metrics that the fleet does not have."""
        check_supported(spec)
        self.spec = spec
        self.decision: ScalingDecision | None = None
        # Cluster seconds go in, so that all windows and periods of the object hold as they are.
        self._controller = HpaController(spec)
        self._replicas = replicas
        self._api_url = api_url
        self._namespace = namespace
        self._labels = labels
        self._timing = timing
        self._clock = clock
        self._journal = journal
        self._was_reason = ""

    @property
    def usage(self) -> float | None:
        """The average per pod of the first metric, None where it is `<unknown>`."""
        return self.decision.usage[0] if self.decision is not None and self.decision.usage else None

    @property
    def targets_text(self) -> str:
        """The column TARGETS of `kubectl get hpa`."""
        usages: Sequence[float | None] = self.decision.usage if self.decision is not None else ()
        texts = ["<unknown>" if each is None else format_quantity(each) for each in usages]
        texts += ["<unknown>"] * (len(self.spec.metrics) - len(texts))
        return ", ".join(
            f"{text}/{format_quantity(each.target)}" for text, each in zip(texts, self.spec.metrics, strict=True)
        )

    async def run(self) -> None:
        """Sync until cancelled."""
        while True:
            await asyncio.sleep(self._timing.shortened_s(SYNC_PERIOD_S))
            await self.sync()

    async def sync(self) -> None:
        """Read all metrics, decide and scale."""
        readings = await asyncio.gather(
            *(
                asyncio.to_thread(read_metric, self._api_url, self._namespace, each, self._labels)
                for each in self.spec.metrics
            )
        )
        before = self._replicas.desired
        # status.replicas of the Deployment counts the pods that exist.
        decision = self._controller.sync(
            self._clock.now_s, before, self._replicas.pods, readings, status_replicas=len(self._replicas.current)
        )
        self.decision = decision
        if decision.desired != before:
            self._journal.record("scaled", _SUBJECT, f"{before} → {decision.desired}: {decision.message}")
            self._replicas.scale(decision.desired)
        elif decision.reason.startswith("FailedGet") and decision.reason != self._was_reason:
            self._journal.record("metric missing", _SUBJECT, f"{decision.reason}: {decision.message}")
        elif self._was_reason.startswith("FailedGet") and not decision.reason.startswith("FailedGet"):
            self._journal.record("metric read", _SUBJECT, "the metric can be read again")
        self._was_reason = decision.reason

    def state(self) -> Mapping[str, Any]:
        """Return what `kubectl describe hpa` shows."""
        decision = self.decision
        conditions = decision.conditions if decision is not None else ()
        return {
            "name": self.spec.name,
            "targets": self.targets_text,
            "minReplicas": self.spec.min_replicas,
            "maxReplicas": self.spec.max_replicas,
            "conditions": [
                {"type": each.type, "status": str(each.status), "reason": each.reason, "message": each.message}
                for each in conditions
            ],
        }
