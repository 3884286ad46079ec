"""A HorizontalPodAutoscaler, typed, validated and completed as by the API server, and settings of the controller."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from conch.base.errors import ConfigError
from conch.operate.scaling.object_reader import ObjectReader


class MetricType(Enum):
    """The source of a metric, as spec.metrics[].type has it."""

    RESOURCE = "Resource"
    CONTAINER_RESOURCE = "ContainerResource"
    PODS = "Pods"
    OBJECT = "Object"
    EXTERNAL = "External"


class TargetType(Enum):
    """How a metric is compared, as target.type has it."""

    UTILIZATION = "Utilization"
    VALUE = "Value"
    AVERAGE_VALUE = "AverageValue"


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """A metric and its target: `target` is a percentage of the request for UTILIZATION, else a number."""

    type: MetricType
    name: str
    target_type: TargetType
    target: float
    container: str = ""
    described_object: tuple[str, str] = ("", "")  # kind, name
    selector: Mapping[str, str] = field(default_factory=dict)

    @property
    def request_key(self) -> str:
        """The key of the metric's resource in `Pod.requests`."""
        return f"{self.container}/{self.name}" if self.container else self.name


class SelectPolicy(Enum):
    """Which policy decides, as behavior's selectPolicy has it."""

    MAX = "Max"
    MIN = "Min"
    DISABLED = "Disabled"


class PolicyType(Enum):
    """The unit of a policy's value."""

    PODS = "Pods"
    PERCENT = "Percent"


@dataclass(frozen=True, slots=True)
class ScalingPolicy:
    """How many pods, or how many percent of them, may be added or removed in a period."""

    type: PolicyType
    value: int
    period_s: int


@dataclass(frozen=True, slots=True)
class ScalingRules:
    """One direction of a behavior. None means the controller's setting."""

    policies: tuple[ScalingPolicy, ...]
    stabilization_s: int | None = None
    select: SelectPolicy = SelectPolicy.MAX
    tolerance: float | None = None

    @property
    def longest_period_s(self) -> int:
        """The longest period of the policies."""
        return max((policy.period_s for policy in self.policies), default=0)


# What the API server fills in where a behavior is given in part.
DEFAULT_SCALE_UP = ScalingRules(
    (ScalingPolicy(PolicyType.PODS, 4, 15), ScalingPolicy(PolicyType.PERCENT, 100, 15)), stabilization_s=0
)
DEFAULT_SCALE_DOWN = ScalingRules((ScalingPolicy(PolicyType.PERCENT, 100, 15),))


@dataclass(frozen=True, slots=True)
class Behavior:
    """How fast replicas may change in each direction."""

    scale_up: ScalingRules = DEFAULT_SCALE_UP
    scale_down: ScalingRules = DEFAULT_SCALE_DOWN


@dataclass(frozen=True, slots=True)
class HpaSpec:
    """A HorizontalPodAutoscaler. Without a behavior the controller's own limits hold: at most max(2 × current, 4)."""

    max_replicas: int
    metrics: tuple[MetricSpec, ...]
    min_replicas: int = 1
    behavior: Behavior | None = None
    name: str = ""
    target: tuple[str, str] = ("Deployment", "")  # kind, name


@dataclass(frozen=True, slots=True)
class HpaSettings:
    """Flags of kube-controller-manager, with its defaults: --horizontal-pod-autoscaler-…"""

    sync_period_s: float = 15.0
    tolerance: float = 0.1
    downscale_stabilization_s: float = 300.0
    cpu_initialization_period_s: float = 300.0
    initial_readiness_delay_s: float = 30.0
    scale_to_zero: bool = False  # the feature gate HPAScaleToZero


_MAX_STABILIZATION_S = 3600
_MAX_PERIOD_S = 1800
_DEFAULT_CPU_UTILIZATION = 80.0
_TARGETS = {
    MetricType.RESOURCE: (TargetType.UTILIZATION, TargetType.AVERAGE_VALUE),
    MetricType.CONTAINER_RESOURCE: (TargetType.UTILIZATION, TargetType.AVERAGE_VALUE),
    MetricType.PODS: (TargetType.AVERAGE_VALUE,),
    MetricType.OBJECT: (TargetType.VALUE, TargetType.AVERAGE_VALUE),
    MetricType.EXTERNAL: (TargetType.VALUE, TargetType.AVERAGE_VALUE),
}
_TARGET_FIELDS = {
    TargetType.UTILIZATION: "averageUtilization",
    TargetType.VALUE: "value",
    TargetType.AVERAGE_VALUE: "averageValue",
}
_SOURCE_FIELDS = {
    MetricType.RESOURCE: "resource",
    MetricType.CONTAINER_RESOURCE: "containerResource",
    MetricType.PODS: "pods",
    MetricType.OBJECT: "object",
    MetricType.EXTERNAL: "external",
}


def read_hpa(document: Mapping[str, Any]) -> HpaSpec:
    """Return the typed form of a HorizontalPodAutoscaler of autoscaling/v2.

    Raises ConfigError with the path, the value and what is allowed there.
    """
    name, spec = ObjectReader.of_object(document, "autoscaling/v2", "HorizontalPodAutoscaler")
    target = spec.mapping("scaleTargetRef")
    target.any("apiVersion")
    read = HpaSpec(
        max_replicas=spec.integer("maxReplicas", 1),
        min_replicas=spec.integer("minReplicas", 0, default=1),
        metrics=tuple(_metric(metric) for metric in spec.items("metrics")) or (_default_metric(),),
        behavior=read_behavior(spec.mapping("behavior")) if spec.has("behavior") else None,
        name=name,
        target=(target.text("kind"), target.text("name")),
    )
    target.finish()
    spec.finish()
    if read.min_replicas > read.max_replicas:
        raise ConfigError(
            f"spec.maxReplicas: expected at least minReplicas ({read.min_replicas}), got {read.max_replicas}"
        )
    if read.min_replicas == 0 and not any(
        metric.type in {MetricType.OBJECT, MetricType.EXTERNAL} for metric in read.metrics
    ):
        raise ConfigError("spec.minReplicas: 0 needs at least one Object or External metric")
    return read


def _default_metric() -> MetricSpec:
    return MetricSpec(MetricType.RESOURCE, "cpu", TargetType.UTILIZATION, _DEFAULT_CPU_UTILIZATION)


def _metric(reader: ObjectReader) -> MetricSpec:
    metric_type = MetricType(reader.choice("type", [known_type.value for known_type in MetricType]))
    source = reader.mapping(_SOURCE_FIELDS[metric_type])
    reader.finish()
    selector: Mapping[str, str] = {}
    if metric_type in {MetricType.RESOURCE, MetricType.CONTAINER_RESOURCE}:
        name = source.text("name")
    else:
        identifier = source.mapping("metric")
        name = identifier.text("name")
        if identifier.has("selector"):
            labels = identifier.mapping("selector")
            labels.any("matchExpressions")
            selector = labels.labels("matchLabels")
            labels.finish()
        identifier.finish()
    container = source.text("container") if metric_type is MetricType.CONTAINER_RESOURCE else ""
    described = ("", "")
    if metric_type is MetricType.OBJECT:
        reference = source.mapping("describedObject")
        reference.any("apiVersion")
        described = (reference.text("kind"), reference.text("name"))
        reference.finish()
    target_type, target = _target(source.mapping("target"), metric_type)
    source.finish()
    return MetricSpec(metric_type, name, target_type, target, container, described, selector)


def _target(reader: ObjectReader, metric_type: MetricType) -> tuple[TargetType, float]:
    allowed = _TARGETS[metric_type]
    target_type = TargetType(reader.choice("type", [choice.value for choice in allowed]))
    name = _TARGET_FIELDS[target_type]
    target = float(reader.integer(name, 1)) if target_type is TargetType.UTILIZATION else reader.quantity(name)
    reader.finish()
    return target_type, target


def read_behavior(reader: ObjectReader) -> Behavior:
    """Return a behavior, completed with the API server's defaults."""
    up = _rules(reader.mapping("scaleUp"), DEFAULT_SCALE_UP) if reader.has("scaleUp") else DEFAULT_SCALE_UP
    down = _rules(reader.mapping("scaleDown"), DEFAULT_SCALE_DOWN) if reader.has("scaleDown") else DEFAULT_SCALE_DOWN
    reader.finish()
    return Behavior(up, down)


def _rules(reader: ObjectReader, default: ScalingRules) -> ScalingRules:
    window = default.stabilization_s
    if reader.has("stabilizationWindowSeconds"):
        window = reader.integer("stabilizationWindowSeconds", 0, _MAX_STABILIZATION_S)
    rules = ScalingRules(
        policies=tuple(_policy(policy) for policy in reader.items("policies")) or default.policies,
        stabilization_s=window,
        select=SelectPolicy(
            reader.choice("selectPolicy", [policy.value for policy in SelectPolicy], default.select.value)
        ),
        tolerance=reader.tolerance("tolerance") if reader.has("tolerance") else None,
    )
    reader.finish()
    return rules


def _policy(reader: ObjectReader) -> ScalingPolicy:
    policy = ScalingPolicy(
        PolicyType(reader.choice("type", [policy_type.value for policy_type in PolicyType])),
        reader.integer("value", 1),
        reader.integer("periodSeconds", 1, _MAX_PERIOD_S),
    )
    reader.finish()
    return policy
