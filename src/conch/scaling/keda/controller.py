"""The two loops of KEDA: `poll` goes between zero and one replica, `sync` is the HPA that KEDA creates."""

from collections.abc import Sequence

from conch.scaling.autoscaler import MetricReading, Pod, ScalingDecision
from conch.scaling.hpa.controller import HpaController
from conch.scaling.hpa.spec import HpaSettings, MetricType, TargetType
from conch.scaling.keda.formula import FormulaError
from conch.scaling.keda.spec import ScaledObjectSpec, Trigger


class KedaController:
    """One ScaledObject. It has no clock: callers pass the time. Readings are one per trigger, in their order.

    A reading with neither value nor error is an empty result of the query.
    """

    def __init__(self, spec: ScaledObjectSpec, settings: HpaSettings | None = None, created_s: float = 0.0) -> None:
        self.spec = spec
        self.hpa = HpaController(spec.hpa(), settings)
        self._created_s = created_s
        self._active_s: float | None = None
        self._failures = [0] * len(spec.triggers)

    def poll(self, now_s: float, replicas: int, readings: Sequence[MetricReading]) -> ScalingDecision:
        """Decide between idle and active, as KEDA's operator does every polling interval."""
        spec = self.spec
        read = [_with_nulls(trigger, each) for trigger, each in zip(spec.triggers, readings, strict=True)]
        idle = spec.idle_replicas if spec.idle_replicas is not None else 0
        if self._is_active(read):
            self._active_s = now_s
            if replicas <= idle:
                first = max(spec.min_replicas, 1)
                return ScalingDecision(first, "KEDAScaleTargetActivated", f"Scaled from {replicas} to {first}")
            return ScalingDecision(replicas, "ScalerActive", "Scaling is performed because triggers are active")
        if any(each.error for each in read):
            # Whether there is load is unknown while a metric cannot be read.
            if spec.fallback is not None and self._is_failing() and replicas < spec.fallback.choose(replicas):
                return ScalingDecision(spec.fallback.choose(replicas), "FallbackExists", "triggers cannot be read")
            return ScalingDecision(replicas, "TriggerError", "triggers cannot be read; replicas stay")
        goes_idle = spec.min_replicas == 0 or spec.idle_replicas is not None
        if goes_idle and replicas > idle:
            since_s = self._active_s if self._active_s is not None else self._created_s
            wait_s = spec.cooldown_s if self._active_s is not None else spec.initial_cooldown_s
            if since_s + wait_s < now_s:
                return ScalingDecision(idle, "KEDAScaleTargetDeactivated", f"Scaled from {replicas} to {idle}")
            return ScalingDecision(replicas, "ScalerCooldown", "Scaler cooling down because triggers are not active")
        if not goes_idle and replicas < spec.min_replicas:
            return ScalingDecision(spec.min_replicas, "ScalerNotActive", "Current replicas below minReplicaCount")
        return ScalingDecision(replicas, "ScalerNotActive", "Scaling is not performed because triggers are not active")

    def sync(
        self, now_s: float, replicas: int, pods: Sequence[Pod], readings: Sequence[MetricReading]
    ) -> ScalingDecision:
        """Decide as the HPA that KEDA creates, which reads the triggers through KEDA's metrics server."""
        reported = [
            self._with_fallback(index, trigger, _with_nulls(trigger, each), replicas)
            for index, (trigger, each) in enumerate(zip(self.spec.triggers, readings, strict=True))
        ]
        if self.spec.modifiers is not None:
            reported = [self._composite(reported, replicas)]
        return self.hpa.sync(now_s, replicas, pods, reported)

    def _is_active(self, read: Sequence[MetricReading]) -> bool:
        modifiers = self.spec.modifiers
        if modifiers is not None:
            composite = self._evaluate(read)
            return composite.value is not None and composite.value > modifiers.activation_target
        return any(
            # Resources always count as active: their usage is never zero.
            not trigger.query or (each.value is not None and each.value > trigger.activation_threshold)
            for trigger, each in zip(self.spec.triggers, read, strict=True)
        )

    def _is_failing(self) -> bool:
        fallback = self.spec.fallback
        return fallback is not None and any(each > fallback.failure_threshold for each in self._failures)

    def _with_fallback(self, index: int, trigger: Trigger, reading: MetricReading, replicas: int) -> MetricReading:
        if trigger.metric.type is not MetricType.EXTERNAL:
            return reading
        self._failures[index] = self._failures[index] + 1 if reading.error else 0
        fallback = self.spec.fallback
        if not reading.error or fallback is None or self._failures[index] <= fallback.failure_threshold:
            return reading
        metric = self.spec.modifiers.metric if self.spec.modifiers is not None else trigger.metric
        if metric.target_type is not TargetType.AVERAGE_VALUE:
            return reading
        # The value that makes an HPA with the target AverageValue ask for these replicas.
        return MetricReading(value=metric.target * fallback.choose(replicas))

    def _composite(self, reported: Sequence[MetricReading], replicas: int) -> MetricReading:
        if self._is_failing() and self.spec.fallback is not None and self.spec.modifiers is not None:
            return MetricReading(value=self.spec.modifiers.metric.target * self.spec.fallback.choose(replicas))
        return self._evaluate(reported)

    def _evaluate(self, read: Sequence[MetricReading]) -> MetricReading:
        modifiers = self.spec.modifiers
        values = {}
        for trigger, each in zip(self.spec.triggers, read, strict=True):
            if each.error or each.value is None:
                return MetricReading(error=each.error or "no value")
            values[trigger.metric.name] = each.value
        try:
            return MetricReading(value=modifiers.formula.value(values) if modifiers is not None else 0.0)
        except FormulaError as error:
            return MetricReading(error=str(error))


def _with_nulls(trigger: Trigger, reading: MetricReading) -> MetricReading:
    """Return what KEDA makes of an empty result: 0 with ignoreNullValues, which is its default, or an error."""
    if not trigger.query or reading.error or reading.value is not None:
        return reading
    if trigger.ignore_null:
        return MetricReading(value=0.0)
    return MetricReading(error="prometheus metrics 'prometheus' target may be lost, the result is empty")
