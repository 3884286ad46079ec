"""The control loop of one HorizontalPodAutoscaler: `sync` is what kube-controller-manager does every 15 s."""

from collections.abc import Sequence
from dataclasses import replace

from conch.operate.scaling.autoscaler import HpaCondition, MetricReading, Pod, ScalingDecision, ScalingEvent
from conch.operate.scaling.hpa.behavior import (
    Limited,
    RateOfChange,
    Recommendation,
    limit_with_behavior,
    limit_without_behavior,
    stabilize,
    stabilize_down,
    store_event,
)
from conch.operate.scaling.hpa.replica_calculator import (
    MetricUnavailable,
    Observation,
    ReplicaProposal,
    Tolerances,
    propose,
)
from conch.operate.scaling.hpa.spec import Behavior, HpaSettings, HpaSpec, MetricSpec, MetricType

_READY_FOR_NEW_SCALE = ("ReadyForNewScale", "recommended size matches current size")
_GOT_SCALE = HpaCondition(
    "AbleToScale", True, "SucceededGetScale", "the HPA controller was able to get the target's current scale"
)
_UP_STABILIZED = (
    "ScaleUpStabilized",
    "recent recommendations were lower than current one, applying the lowest recent recommendation",
)
_DOWN_STABILIZED = (
    "ScaleDownStabilized",
    "recent recommendations were higher than current one, applying the highest recent recommendation",
)
_DISABLED = ("ScalingDisabled", "scaling is disabled since the replica count of the target is zero")
_OVER_MAXIMUM = "Current number of replicas above Spec.MaxReplicas"
_BELOW_MINIMUM = "Current number of replicas below Spec.MinReplicas"
_BELOW_TARGET = "All metrics below target"


class HpaController:
    """One HorizontalPodAutoscaler with the memory that its limits need. It has no clock: callers pass the time."""

    def __init__(self, spec: HpaSpec, settings: HpaSettings | None = None) -> None:
        self.settings = settings or HpaSettings()
        if spec.min_replicas == 0 and not self.settings.scale_to_zero:
            # Without the feature gate the API server rejects 0.
            spec = replace(spec, min_replicas=1)
        self.spec = spec
        self._recommendations: list[Recommendation] = []
        self._up_events: list[ScalingEvent] = []
        self._down_events: list[ScalingEvent] = []
        self._shown: dict[str, HpaCondition] = {}  # by type, in the order in which they were first set
        behavior = spec.behavior or Behavior()
        self._tolerances = Tolerances(
            *(
                self.settings.tolerance if rules.tolerance is None else rules.tolerance
                for rules in (behavior.scale_down, behavior.scale_up)
            )
        )

    def sync(
        self,
        now_s: float,
        replicas: int,
        pods: Sequence[Pod],
        readings: Sequence[MetricReading],
        *,
        status_replicas: int | None = None,
    ) -> ScalingDecision:
        """Decide the replicas of the target, which has `replicas` in its spec, from one reading per metric of the spec.

        Times may not decrease from call to call. The caller applies `desired`; it is taken to succeed.
        """
        if not self._recommendations:
            self._recommendations.append(Recommendation(now_s, replicas))
        spec = self.spec
        if replicas == 0 and spec.min_replicas != 0:
            self._show(_GOT_SCALE, HpaCondition("ScalingActive", False, *_DISABLED))
            return ScalingDecision(0, *_DISABLED, self._conditions())
        if replicas > spec.max_replicas:
            return self._rescaled(now_s, replicas, spec.max_replicas, _OVER_MAXIMUM)
        if replicas < spec.min_replicas:
            return self._rescaled(now_s, replicas, spec.min_replicas, _BELOW_MINIMUM)
        seen = Observation(now_s, replicas, replicas if status_replicas is None else status_replicas, pods)
        desired, name, active, usage = self._largest(seen, readings)
        if not active.status:
            self._show(_GOT_SCALE, active)
            return ScalingDecision(replicas, active.reason, active.message, self._conditions(), usage)
        final, able, limited = self._normalize(now_s, replicas, desired)
        self._show(able, active, limited)
        if final != replicas:
            message = f"{name} above target" if desired > replicas else _BELOW_TARGET
            return self._rescaled(now_s, replicas, final, message, usage)
        shown = limited if limited.status else able
        return ScalingDecision(final, shown.reason, shown.message, self._conditions(), usage)

    def _rescaled(
        self, now_s: float, replicas: int, desired: int, message: str, usage: tuple[float | None, ...] = ()
    ) -> ScalingDecision:
        self._store(now_s, replicas, desired)
        updated = f"the HPA controller was able to update the target scale to {desired}"
        self._show(HpaCondition("AbleToScale", True, "SucceededRescale", updated))
        text = f"New size: {desired}; reason: {message}"
        return ScalingDecision(desired, "SuccessfulRescale", text, self._conditions(), usage)

    def _show(self, *conditions: HpaCondition) -> None:
        """Set conditions; the others stay as an earlier sync left them, as in the status of the object."""
        self._shown.update({condition.type: condition for condition in conditions})

    def _conditions(self) -> tuple[HpaCondition, ...]:
        return tuple(self._shown.values())

    def _largest(
        self, seen: Observation, readings: Sequence[MetricReading]
    ) -> tuple[int, str, HpaCondition, tuple[float | None, ...]]:
        """Return the largest proposal, the name of its metric, the condition ScalingActive, and the usages."""
        largest, name, invalid = 0, "", None
        usage: list[float | None] = []
        for metric, reading in zip(self.spec.metrics, readings, strict=True):
            try:
                proposal: ReplicaProposal | None = propose(metric, reading, seen, self._tolerances, self.settings)
            except MetricUnavailable as error:
                proposal = None
                invalid = invalid or _unable(metric, str(error))
            usage.append(None if proposal is None else proposal.usage)
            if proposal is not None and (largest == 0 or proposal.replicas > largest):
                largest, name = proposal.replicas, _described(metric)
        all_invalid = all(shown is None for shown in usage)
        # One metric that is missing could be the one that asks for more replicas.
        if invalid is not None and (all_invalid or largest < seen.spec_replicas):
            return seen.spec_replicas, "", invalid, tuple(usage)
        message = f"the HPA was able to successfully calculate a replica count from {name}"
        return largest, name, HpaCondition("ScalingActive", True, "ValidMetricFound", message), tuple(usage)

    def _normalize(self, now_s: float, replicas: int, desired: int) -> tuple[int, HpaCondition, HpaCondition]:
        """Return the replicas, and the conditions AbleToScale and ScalingLimited."""
        behavior, spec = self.spec.behavior, self.spec
        if behavior is None:
            windows = (0.0, self.settings.downscale_stabilization_s)
            stable = stabilize_down(self._recommendations, desired, now_s, windows[1])
            limited = limit_without_behavior(replicas, stable, spec.min_replicas, spec.max_replicas)
        else:
            windows = (self._window(behavior.scale_up.stabilization_s, 0.0), self._down_window(behavior))
            stable = stabilize(self._recommendations, replicas, desired, now_s, windows)
            limited = self._limit(now_s, replicas, stable, behavior)
        self._remember(now_s, desired, max(windows))
        reason = _READY_FOR_NEW_SCALE
        if stable != desired:
            reason = _DOWN_STABILIZED if behavior is None or desired < replicas else _UP_STABILIZED
        able = HpaCondition("AbleToScale", True, *reason)
        is_limited = limited.replicas != stable
        shown = HpaCondition("ScalingLimited", is_limited, limited.reason, limited.message)
        return limited.replicas, able, shown

    def _limit(self, now_s: float, replicas: int, desired: int, behavior: Behavior) -> Limited:
        events = [*self._up_events, *self._down_events]
        up = RateOfChange(behavior.scale_up, events, now_s)
        down = RateOfChange(behavior.scale_down, events, now_s)
        return limit_with_behavior(replicas, desired, (self.spec.min_replicas, self.spec.max_replicas), up, down)

    def _down_window(self, behavior: Behavior) -> float:
        return self._window(behavior.scale_down.stabilization_s, self.settings.downscale_stabilization_s)

    @staticmethod
    def _window(given: int | None, default: float) -> float:
        return default if given is None else float(given)

    def _remember(self, now_s: float, desired: int, longest_s: float) -> None:
        kept = [recommendation for recommendation in self._recommendations if recommendation.at_s >= now_s - longest_s]
        self._recommendations = [*kept, Recommendation(now_s, desired)]

    def _store(self, now_s: float, before: int, after: int) -> None:
        if self.spec.behavior is None:
            return
        event = ScalingEvent(now_s, before, after)
        if after > before:
            store_event(self._up_events, event, self.spec.behavior.scale_up)
        else:
            store_event(self._down_events, event, self.spec.behavior.scale_down)


def _unable(metric: MetricSpec, message: str) -> HpaCondition:
    reason = f"FailedGet{metric.type.value}Metric"
    return HpaCondition("ScalingActive", False, reason, f"the HPA was unable to compute the replica count: {message}")


def _described(metric: MetricSpec) -> str:
    if metric.type is MetricType.PODS:
        return f"pods metric {metric.name}"
    if metric.type is MetricType.OBJECT:
        kind, name = metric.described_object
        return f"{metric.name} metric on {kind}/{name}"
    if metric.type is MetricType.EXTERNAL:
        return f"external metric {metric.name}"
    return f"{metric.request_key} resource"
