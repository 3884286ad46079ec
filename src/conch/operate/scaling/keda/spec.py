"""A ScaledObject of KEDA, typed, and completed with KEDA's defaults."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from conch.base.errors import ConfigError
from conch.operate.scaling.hpa.spec import Behavior, HpaSpec, MetricSpec, MetricType, TargetType, read_behavior
from conch.operate.scaling.keda.formula import Formula, parse_formula
from conch.operate.scaling.object_reader import ObjectReader, parse_quantity

COMPOSITE_METRIC = "composite-metric"
_METRIC_TYPES = ("AverageValue", "Value")
_ACCESS = (
    "serverAddress",
    "authModes",
    "namespace",
    "customHeaders",
    "unsafeSsl",
    "timeout",
    "queryParameters",
    "cortexOrgID",
)
_NULLS = {"true": True, "false": False}


class FallbackBehavior(Enum):
    """Which replicas a fallback asks for."""

    STATIC = "static"
    CURRENT = "currentReplicas"
    CURRENT_IF_HIGHER = "currentReplicasIfHigher"
    CURRENT_IF_LOWER = "currentReplicasIfLower"
    TRIGGER_SCOPED = "triggerScoped"  # none: failing triggers are nil in the formula of scaling modifiers


@dataclass(frozen=True, slots=True)
class Fallback:
    """What KEDA reports after more than `failure_threshold` failed reads of a metric in a row."""

    failure_threshold: int
    replicas: int
    behavior: FallbackBehavior = FallbackBehavior.STATIC

    def choose(self, current: int) -> int:
        """Return the replicas that the fallback asks for."""
        if self.behavior is FallbackBehavior.CURRENT:
            return current
        if self.behavior is FallbackBehavior.CURRENT_IF_HIGHER:
            return max(current, self.replicas)
        if self.behavior is FallbackBehavior.CURRENT_IF_LOWER:
            return min(current, self.replicas)
        return self.replicas


@dataclass(frozen=True, slots=True)
class Trigger:
    """A trigger of the type prometheus. `metric` is what its HPA has; its name is that of the trigger or s0-prometheus.

    With `ignore_null` (KEDA's default) an empty result counts as 0: it scales down. Otherwise it is an error.
    """

    query: str
    metric: MetricSpec
    activation_threshold: float = 0.0
    ignore_null: bool = True


@dataclass(frozen=True, slots=True)
class ScalingModifiers:
    """A formula over the values of the triggers; the HPA then has one composite metric."""

    formula: Formula
    metric: MetricSpec
    activation_target: float = 0.0


@dataclass(frozen=True, slots=True)
class ScaledObjectSpec:
    """A ScaledObject, completed with KEDA's defaults."""

    triggers: tuple[Trigger, ...]
    min_replicas: int = 0
    max_replicas: int = 100
    idle_replicas: int | None = None
    polling_interval_s: float = 30.0
    cooldown_s: float = 300.0
    initial_cooldown_s: float = 0.0
    fallback: Fallback | None = None
    behavior: Behavior | None = None
    modifiers: ScalingModifiers | None = None
    name: str = ""
    target: tuple[str, str] = ("Deployment", "")

    def hpa(self) -> HpaSpec:
        """Return the HorizontalPodAutoscaler that KEDA creates: it never goes below 1, KEDA itself goes to 0."""
        metrics = tuple(trigger.metric for trigger in self.triggers)
        if self.modifiers is not None:
            metrics = (self.modifiers.metric,)
        return HpaSpec(
            self.max_replicas, metrics, max(self.min_replicas, 1), self.behavior, f"keda-hpa-{self.name}", self.target
        )


def external(name: str, target: float, *, is_average: bool) -> MetricSpec:
    """Return the External metric of a trigger."""
    target_type = TargetType.AVERAGE_VALUE if is_average else TargetType.VALUE
    return MetricSpec(MetricType.EXTERNAL, name, target_type, target)


def read_scaled_object(document: Mapping[str, Any]) -> ScaledObjectSpec:
    """Return the typed form of a ScaledObject of keda.sh/v1alpha1 with triggers of the types prometheus, cpu, memory.

    Raises ConfigError with the path, the value and what is allowed there.
    """
    name, spec = ObjectReader.of_object(document, "keda.sh/v1alpha1", "ScaledObject")
    target = spec.mapping("scaleTargetRef")
    target.any("apiVersion", "envSourceContainerName")
    behavior, modifiers = _advanced(spec.mapping("advanced")) if spec.has("advanced") else (None, None)
    read = ScaledObjectSpec(
        triggers=tuple(_trigger(trigger, index) for index, trigger in enumerate(spec.items("triggers"))),
        min_replicas=spec.integer("minReplicaCount", 0, default=0),
        max_replicas=spec.integer("maxReplicaCount", 1, default=100),
        idle_replicas=spec.integer("idleReplicaCount", 0) if spec.has("idleReplicaCount") else None,
        polling_interval_s=spec.integer("pollingInterval", 1, default=30),
        cooldown_s=spec.integer("cooldownPeriod", 0, default=300),
        initial_cooldown_s=spec.integer("initialCooldownPeriod", 0, default=0),
        fallback=_fallback(spec.mapping("fallback")) if spec.has("fallback") else None,
        behavior=behavior,
        modifiers=modifiers,
        name=name,
        target=(target.text("kind", "Deployment"), target.text("name")),
    )
    target.finish()
    spec.finish()
    _check(read)
    return read


def _check(spec: ScaledObjectSpec) -> None:
    if not spec.triggers:
        raise ConfigError("spec.triggers: expected at least one trigger")
    if spec.min_replicas > spec.max_replicas:
        raise ConfigError(
            f"spec.maxReplicaCount: expected at least minReplicaCount ({spec.min_replicas}), got {spec.max_replicas}"
        )
    if spec.idle_replicas is not None and spec.idle_replicas >= spec.min_replicas:
        raise ConfigError(
            f"spec.idleReplicaCount: expected less than minReplicaCount ({spec.min_replicas}), got {spec.idle_replicas}"
        )
    if spec.fallback is not None:
        if not any(trigger.query for trigger in spec.triggers):
            raise ConfigError("spec.fallback: needs a trigger other than cpu and memory, to which it does not apply")
        if spec.fallback.behavior is FallbackBehavior.TRIGGER_SCOPED and spec.modifiers is None:
            raise ConfigError(
                "spec.fallback.behavior: triggerScoped needs a formula of spec.advanced.scalingModifiers, where failing"
                " triggers are nil, such as (a ?? 0) + b"
            )
    if spec.modifiers is not None:
        unknown = spec.modifiers.formula.names - {trigger.metric.name for trigger in spec.triggers}
        if unknown:
            raise ConfigError(
                f"spec.advanced.scalingModifiers.formula: '{min(unknown)}' is not the name of a trigger; "
                f"known: {', '.join(sorted(trigger.metric.name for trigger in spec.triggers))}"
            )


def _trigger(reader: ObjectReader, index: int) -> Trigger:
    kind = reader.text("type")
    if kind not in {"prometheus", "cpu", "memory"}:
        raise reader.reject("type", "prometheus, cpu or memory; other triggers are not supported here")
    reader.any("authenticationRef", "useCachedMetrics")
    metadata = reader.mapping("metadata")
    name = reader.text("name", f"s{index}-{kind}")
    if kind != "prometheus":
        reader.choice("metricType", ("Utilization",), "Utilization")
        reader.finish()
        percentage = float(_number(metadata, "value"))
        metadata.finish()
        return Trigger("", MetricSpec(MetricType.RESOURCE, kind, TargetType.UTILIZATION, percentage))
    is_average = reader.choice("metricType", _METRIC_TYPES, "AverageValue") == "AverageValue"
    reader.finish()
    metadata.any(*_ACCESS)
    threshold = _number(metadata, "threshold")
    if threshold <= 0:
        raise metadata.reject("threshold", "a number above zero")
    trigger = Trigger(
        metadata.text("query"),
        external(name, threshold, is_average=is_average),
        _number(metadata, "activationThreshold") if metadata.has("activationThreshold") else 0.0,
        _NULLS[metadata.choice("ignoreNullValues", tuple(_NULLS), "true")],
    )
    metadata.finish()
    return trigger


def _number(reader: ObjectReader, name: str) -> float:
    """Return a number that KEDA's metadata has as text."""
    text = reader.text(name)
    try:
        return float(text)
    except ValueError:
        raise reader.reject(name, "a number as text, such as '1.5'") from None


def _fallback(reader: ObjectReader) -> Fallback:
    behaviors = [behavior.value for behavior in FallbackBehavior]
    fallback = Fallback(
        reader.integer("failureThreshold", -(2**31)),
        reader.integer("replicas", -(2**31)),
        FallbackBehavior(reader.choice("behavior", behaviors, FallbackBehavior.STATIC.value)),
    )
    if fallback.failure_threshold < 0 or fallback.replicas < 0:
        raise ConfigError(  # in the words of KEDA's admission webhook
            f"{reader.path}: FailureThreshold={fallback.failure_threshold} & Replicas={fallback.replicas} must both be"
            " greater than or equal to 0"
        )
    reader.finish()
    return fallback


def _advanced(reader: ObjectReader) -> tuple[Behavior | None, ScalingModifiers | None]:
    reader.any("restoreToOriginalReplicaCount")
    behavior = modifiers = None
    if reader.has("horizontalPodAutoscalerConfig"):
        config = reader.mapping("horizontalPodAutoscalerConfig")
        config.any("name")
        behavior = read_behavior(config.mapping("behavior")) if config.has("behavior") else None
        config.finish()
    if reader.has("scalingModifiers") and not reader.is_empty("scalingModifiers"):  # live objects have an empty one
        modifiers = _modifiers(reader.mapping("scalingModifiers"))
    reader.finish()
    return behavior, modifiers


def _modifiers(reader: ObjectReader) -> ScalingModifiers:
    formula = parse_formula(reader.text("formula"), f"{reader.path}.formula")
    target = parse_quantity(reader.text("target"))
    if target is None or target <= 0:
        raise reader.reject("target", "a number above zero as text, such as '2'")
    is_average = reader.choice("metricType", _METRIC_TYPES, "AverageValue") == "AverageValue"
    activation = _number(reader, "activationTarget") if reader.has("activationTarget") else 0.0
    reader.finish()
    return ScalingModifiers(formula, external(COMPOSITE_METRIC, target, is_average=is_average), activation)
