"""The two loops of KEDA: `poll` goes between zero and one replica, `sync` is the HPA that KEDA creates."""

from collections.abc import Sequence

from conch.operate.scaling.autoscaler import MetricReading, Pod, PodPhase, ScalingDecision
from conch.operate.scaling.hpa.controller import HpaController
from conch.operate.scaling.hpa.spec import HpaSettings, MetricSpec, MetricType, TargetType
from conch.operate.scaling.keda.formula import FormulaError
from conch.operate.scaling.keda.spec import FallbackBehavior, ScaledObjectSpec, Trigger


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
        read = [_with_nulls(trigger, reading) for trigger, reading in zip(spec.triggers, readings, strict=True)]
        idle = spec.idle_replicas if spec.idle_replicas is not None else 0
        failed = any(reading.error for reading in read)
        if self._is_active(read):
            if replicas == 0 or (spec.idle_replicas is not None and replicas < spec.min_replicas):
                self._active_s = now_s
                first = max(spec.min_replicas, 1)
                return ScalingDecision(first, "KEDAScaleTargetActivated", f"Scaled from {replicas} to {first}")
            if not failed:
                self._active_s = now_s
            return ScalingDecision(replicas, "ScalerActive", "Scaling is performed because triggers are active")
        if failed and (spec.fallback is None or spec.fallback.replicas > 0):
            # Whether there is load is unknown while a metric cannot be read. From zero replicas nothing scales up: the
            # fallback is a value for the HPA, which is disabled there.
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
        read = [_with_nulls(trigger, reading) for trigger, reading in zip(self.spec.triggers, readings, strict=True)]
        for index, (trigger, reading) in enumerate(zip(self.spec.triggers, read, strict=True)):
            self._count_failure(index, trigger, reading)
        if self.spec.modifiers is not None:
            reported = [self._composite(read, replicas, pods)]
        else:
            reported = [
                self._with_fallback(trigger.metric, reading, replicas, pods) if self._is_failing(index) else reading
                for index, (trigger, reading) in enumerate(zip(self.spec.triggers, read, strict=True))
            ]
        return self.hpa.sync(now_s, replicas, pods, reported)

    def _is_active(self, read: Sequence[MetricReading]) -> bool:
        modifiers = self.spec.modifiers
        if modifiers is not None:
            composite = self._evaluate(read)
            return composite.value is not None and composite.value > modifiers.activation_target
        return any(
            # Resources always count as active: their usage is never zero.
            not trigger.query or (reading.value is not None and reading.value > trigger.activation_threshold)
            for trigger, reading in zip(self.spec.triggers, read, strict=True)
        )

    def _is_failing(self, index: int) -> bool:
        fallback = self.spec.fallback
        return fallback is not None and self._failures[index] > fallback.failure_threshold

    def _count_failure(self, index: int, trigger: Trigger, reading: MetricReading) -> None:
        if trigger.metric.type is MetricType.EXTERNAL:
            self._failures[index] = self._failures[index] + 1 if reading.error else 0

    def _with_fallback(
        self, metric: MetricSpec, reading: MetricReading, replicas: int, pods: Sequence[Pod]
    ) -> MetricReading:
        """Return the value that makes an HPA ask for the replicas of the fallback, or the error."""
        fallback = self.spec.fallback
        if fallback is None:
            return reading
        chosen: float = fallback.choose(replicas)
        if metric.target_type is TargetType.VALUE:
            ready = sum(pod.count for pod in pods if pod.phase is PodPhase.RUNNING and pod.ready)
            if ready == 0:
                return MetricReading(error="readyReplicas is zero, cannot do fallback")
            chosen /= ready
        return MetricReading(value=metric.target * chosen)

    def _composite(self, read: Sequence[MetricReading], replicas: int, pods: Sequence[Pod]) -> MetricReading:
        """Return the composite metric of the scaling modifiers, or its fallback."""
        modifiers, fallback = self.spec.modifiers, self.spec.fallback
        if modifiers is None or fallback is None:
            return self._evaluate(read)
        # KEDA parses the target as an integer, and has no fallback where it is not one.
        if not modifiers.metric.target.is_integer():
            return self._evaluate(read)
        failing = [self._is_failing(index) for index in range(len(read))]
        if fallback.behavior is FallbackBehavior.TRIGGER_SCOPED:
            return self._evaluate(
                [MetricReading() if gone else reading for gone, reading in zip(failing, read, strict=True)]
            )
        if any(failing):
            return self._with_fallback(modifiers.metric, read[failing.index(True)], replicas, pods)
        return self._evaluate(read)

    def _evaluate(self, read: Sequence[MetricReading]) -> MetricReading:
        """Return the value of the formula; readings without value and error are nil in it."""
        modifiers = self.spec.modifiers
        assert modifiers is not None
        values: dict[str, float | None] = {}
        for trigger, reading in zip(self.spec.triggers, read, strict=True):
            if reading.error:
                return MetricReading(error=reading.error)
            values[trigger.metric.name] = reading.value
        try:
            return MetricReading(value=modifiers.formula.value(values))
        except FormulaError as error:
            return MetricReading(error=str(error))


def _with_nulls(trigger: Trigger, reading: MetricReading) -> MetricReading:
    """Return what KEDA makes of an empty result: 0 with ignoreNullValues, which is its default, or an error."""
    if not trigger.query or reading.error or reading.value is not None:
        return reading
    if trigger.ignore_null:
        return MetricReading(value=0.0)
    return MetricReading(error="prometheus metrics 'prometheus' target may be lost, the result is empty")
