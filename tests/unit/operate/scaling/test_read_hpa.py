"""HorizontalPodAutoscaler objects: what is read, and what is rejected with which message."""

from typing import Any

import pytest
import yaml

from conch.base.errors import ConfigError
from conch.operate.scaling.hpa.spec import MetricType, PolicyType, SelectPolicy, TargetType, read_hpa

RATIO_HPA = """
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: detector}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: detector}
  minReplicas: 1
  maxReplicas: 4
  metrics:
    - type: Pods
      pods:
        metric: {name: triton_queue_compute_ratio}
        target: {type: AverageValue, averageValue: 1000m}
  behavior:
    scaleUp:
      stabilizationWindowSeconds: 30
      tolerance: 50m
      selectPolicy: Min
      policies: [{type: Percent, value: 100, periodSeconds: 60}]
"""


def document(**spec: Any) -> dict[str, Any]:
    """Return the object above with other fields of its spec."""
    read: dict[str, Any] = yaml.safe_load(RATIO_HPA)
    read["spec"].update(spec)
    return read


def test_an_object_is_read_and_completed_with_defaults() -> None:
    spec = read_hpa(document())
    assert (spec.name, spec.min_replicas, spec.max_replicas, spec.target) == (
        "detector",
        1,
        4,
        ("Deployment", "detector"),
    )
    metric = spec.metrics[0]
    assert (metric.type, metric.target_type, metric.target) == (MetricType.PODS, TargetType.AVERAGE_VALUE, 1.0)
    assert spec.behavior is not None
    up, down = spec.behavior.scale_up, spec.behavior.scale_down
    assert (up.stabilization_s, up.tolerance, up.select) == (30, 0.05, SelectPolicy.MIN)
    assert [(policy.type, policy.value, policy.period_s) for policy in up.policies] == [(PolicyType.PERCENT, 100, 60)]
    assert (down.stabilization_s, [policy.value for policy in down.policies]) == (None, [100])


def test_without_metrics_the_target_is_cpu_at_80_percent() -> None:
    metric = read_hpa(document(metrics=[])).metrics[0]
    assert (metric.name, metric.target_type, metric.target) == ("cpu", TargetType.UTILIZATION, 80)


def pods_metric(**target: Any) -> list[dict[str, Any]]:
    """Return a list of one Pods metric."""
    return [{"type": "Pods", "pods": {"metric": {"name": "x"}, "target": target}}]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"maxReplicas": 0}, "spec.maxReplicas: expected an integer of at least 1, got 0"),
        ({"maxReplicas": None}, "spec.maxReplicas: required"),
        ({"minReplicas": 9}, "spec.maxReplicas: expected at least minReplicas (9), got 4"),
        ({"minReplicas": 0}, "spec.minReplicas: 0 needs at least one Object or External metric"),
        ({"minReplica": 1}, "spec.minReplica: unknown field; did you mean minReplicas?"),
        ({"metrics": [{"type": "Pod"}]}, "spec.metrics[0].type: expected one of Resource, ContainerResource, Pods"),
        ({"metrics": pods_metric(type="Value", value=1)}, "target.type: expected one of AverageValue, got 'Value'"),
        ({"metrics": pods_metric(type="AverageValue", averageValue="1 s")}, "expected a quantity above zero"),
        ({"metrics": pods_metric(type="AverageValue", averageValue="0")}, "expected a quantity above zero"),
        ({"metrics": pods_metric(type="AverageValue")}, "spec.metrics[0].pods.target.averageValue: required"),
        ({"metrics": "cpu"}, "spec.metrics: expected a list, got 'cpu'"),
        (
            {"behavior": {"scaleDown": {"policies": [{"type": "Pods", "value": 1, "periodSeconds": 3600}]}}},
            "spec.behavior.scaleDown.policies[0].periodSeconds: expected an integer from 1 to 1800, got 3600",
        ),
        ({"behavior": {"scaleUp": {"selectPolicy": "Average"}}}, "expected one of Max, Min, Disabled"),
        ({"behavior": {"scaleUp": {"tolerance": -1}}}, "expected a quantity of at least 0"),
        ({"behavior": {"scaleup": {}}}, "spec.behavior.scaleup: unknown field; did you mean scaleUp?"),
        ({"scaleTargetRef": {"kind": "Deployment"}}, "spec.scaleTargetRef.name: required"),
    ],
)
def test_invalid_objects_are_rejected_with_path_and_reason(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_hpa(document(**changed))
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("key", "value"), [("kind", "Deployment"), ("apiVersion", "autoscaling/v1"), ("spec", None), ("spec", [1])]
)
def test_other_objects_are_rejected(key: str, value: object) -> None:
    with pytest.raises(ConfigError):
        read_hpa(document() | {key: value})
