"""Read a HorizontalPodAutoscaler object, as the API server validates and completes it."""

from collections.abc import Mapping
from typing import Any

from conch.base.errors import ConfigError
from conch.operate.scaling.hpa.spec import (
    DEFAULT_SCALE_DOWN,
    DEFAULT_SCALE_UP,
    Behavior,
    HpaSpec,
    MetricSpec,
    MetricType,
    PolicyType,
    ScalingPolicy,
    ScalingRules,
    SelectPolicy,
    TargetType,
)
from conch.operate.scaling.object_reader import ObjectReader

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
        metrics=tuple(_metric(each) for each in spec.items("metrics")) or (_default_metric(),),
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
        each.type in {MetricType.OBJECT, MetricType.EXTERNAL} for each in read.metrics
    ):
        raise ConfigError("spec.minReplicas: 0 needs at least one Object or External metric")
    return read


def _default_metric() -> MetricSpec:
    return MetricSpec(MetricType.RESOURCE, "cpu", TargetType.UTILIZATION, _DEFAULT_CPU_UTILIZATION)


def _metric(reader: ObjectReader) -> MetricSpec:
    metric_type = MetricType(reader.choice("type", [each.value for each in MetricType]))
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
    target_type = TargetType(reader.choice("type", [each.value for each in allowed]))
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
        policies=tuple(_policy(each) for each in reader.items("policies")) or default.policies,
        stabilization_s=window,
        select=SelectPolicy(reader.choice("selectPolicy", [each.value for each in SelectPolicy], default.select.value)),
        tolerance=reader.tolerance("tolerance") if reader.has("tolerance") else None,
    )
    reader.finish()
    return rules


def _policy(reader: ObjectReader) -> ScalingPolicy:
    policy = ScalingPolicy(
        PolicyType(reader.choice("type", [each.value for each in PolicyType])),
        reader.integer("value", 1),
        reader.integer("periodSeconds", 1, _MAX_PERIOD_S),
    )
    reader.finish()
    return policy
