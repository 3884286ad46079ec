"""The loop of an autoscaler: read metrics, decide, scale the replicas, and report as Kubernetes does."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conch.operate.fleet.metrics.prometheus import PrometheusProcess
from conch.operate.fleet.replica_set import ReplicaSet
from conch.operate.fleet.report.journal import Journal
from conch.operate.fleet.timing import SYNC_PERIOD_S, ClusterClock, Timing
from conch.operate.scaling.autoscaler import ScalingDecision
from conch.operate.scaling.hpa.spec import HpaSpec
from conch.operate.scaling.quantity import format_quantity

_FAILED = "FailedGet"


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
        """Assign."""
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
        texts = ["<unknown>" if each is None else format_quantity(each) for each in usages]
        texts += ["<unknown>"] * (len(self.hpa.metrics) - len(texts))
        return ", ".join(
            f"{text}/{format_quantity(each.target)}" for text, each in zip(texts, self.hpa.metrics, strict=True)
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
                {"type": each.type, "status": str(each.status), "reason": each.reason, "message": each.message}
                for each in conditions
            ],
        }
