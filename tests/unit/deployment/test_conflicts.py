"""Values that are valid each but not together: Helm and Python refuse them with the same text."""

from typing import Any

import pytest

from conch.deployment.values.read import read_values
from conch.errors import ConfigError
from tests.helm_process import HelmChart, HelmError

COUNTER = {
    "type": "Pods",
    "pods": {
        "metric": {"name": "nv_inference_request_success"},
        "target": {"type": "AverageValue", "averageValue": "1000"},
    },
}
CONFLICTS: list[tuple[dict[str, Any], str]] = [
    ({"monitoring": {"scrapeTimeoutSeconds": 7}}, "monitoring.scrapeTimeoutSeconds 7 exceeds monitoring.interval"),
    ({"autoscaling": {"type": "hpa", "minReplicas": 9}}, "autoscaling.minReplicas 9 exceeds autoscaling.maxReplicas 4"),
    ({"autoscaling": {"type": "hpa", "minReplicas": 0}}, "minReplicas 0 needs autoscaling.type keda"),
    ({"autoscaling": {"type": "hpa", "metrics": []}}, "the autoscaler needs one metric"),
    (
        {"autoscaling": {"type": "hpa", "customMetrics": [COUNTER]}},
        "autoscaling.customMetrics has 'nv_inference_request_success', a counter: it only grows",
    ),
    ({"autoscaling": {"type": "keda", "minReplicas": 0}}, "minReplicas 0 needs a trigger in autoscaling.keda.triggers"),
    ({"autoscaling": {"type": "keda", "metrics": []}}, "the autoscaler needs one trigger"),
    (
        {"autoscaling": {"type": "keda", "keda": {"fallback": {"replicas": 5}}}},
        "autoscaling.keda.fallback.replicas 5 exceeds autoscaling.maxReplicas 4",
    ),
    ({"autoscaling": {"type": "keda", "keda": {"authentication": {"mode": "tls"}}}}, "secretName is empty"),
    ({"disruptionBudget": {"minAvailable": "1"}}, "needs either minAvailable or maxUnavailable"),
    ({"disruptionBudget": {"maxUnavailable": ""}}, "needs either minAvailable or maxUnavailable"),
    ({"disruptionBudget": {"maxUnavailable": 0}}, "maxUnavailable 0 keeps all pods"),
    ({"disruptionBudget": {"maxUnavailable": "0%"}}, "maxUnavailable 0% keeps all pods, so no node can be drained"),
    (
        {"disruptionBudget": {"minAvailable": 1, "maxUnavailable": ""}},
        "disruptionBudget.minAvailable 1 keeps 1 of 1 replicas, so no node can be drained; use maxUnavailable 1",
    ),
    (
        {"disruptionBudget": {"minAvailable": "67%", "maxUnavailable": ""}, "replicaCount": 3},
        "disruptionBudget.minAvailable 67% keeps 3 of 3 replicas",
    ),
    (
        {
            "disruptionBudget": {"minAvailable": "2", "maxUnavailable": ""},
            "autoscaling": {"type": "hpa", "minReplicas": 2},
            "replicaCount": 9,
        },
        "disruptionBudget.minAvailable 2 keeps 2 of 2 replicas",
    ),
]
# What the types refuse: the key and the allowed values.
INVALID: list[tuple[dict[str, Any], str, str]] = [
    ({"autoscaling": {"type": "both"}}, "autoscaling.type", "allowed: none, hpa, keda"),
    ({"autoscaling": {"hpa": {"enabled": True}}}, "unknown key 'autoscaling.hpa'", "Known: type, minReplicas"),
    ({"monitoring": {"monitor": "podmonitor"}}, "monitoring.monitor", "allowed: PodMonitor, ServiceMonitor, none"),
    ({"monitoring": {"rules": {"thresholds": {"objective": 99.9}}}}, "rules.thresholds.objective", "< 1"),
    ({"networkPolicy": {"metricsNamespace": ""}}, "networkPolicy.metricsNamespace", "Namespace of Prometheus"),
    ({"autoscaling": {"metrics": [{"name": "nv_inference_count"}]}}, "autoscaling.metrics", "nv_inference_count"),
    ({"autoscaling": {"metrics": [{"averageValue": "2Gi"}]}}, "autoscaling.metrics", "averageValue"),
]


@pytest.mark.parametrize(("values", "message"), CONFLICTS, ids=[message for _, message in CONFLICTS])
def test_helm_and_python_refuse_the_same_values(chart: HelmChart, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as python:
        read_values(values)
    assert message in str(python.value)
    with pytest.raises(HelmError) as helm:
        chart.objects(values)
    assert str(python.value) in str(helm.value)


@pytest.mark.parametrize(("values", "place", "allowed"), INVALID, ids=[place for _, place, _ in INVALID])
def test_invalid_values_are_named(chart: HelmChart, values: dict[str, Any], place: str, allowed: str) -> None:
    with pytest.raises(ConfigError) as python:
        read_values(values)
    assert place in str(python.value)
    assert allowed in str(python.value)
    with pytest.raises(HelmError):
        chart.objects(values)


def test_budgets_that_let_nodes_drain() -> None:
    half = {"minAvailable": "50%", "maxUnavailable": ""}
    read_values({"disruptionBudget": half, "replicaCount": 2})
    read_values({"disruptionBudget": half, "autoscaling": {"type": "hpa", "minReplicas": 2}})
    read_values({"disruptionBudget": {"minAvailable": "1", "maxUnavailable": "", "enabled": False}})
    read_values({"disruptionBudget": {"minAvailable": "1", "maxUnavailable": ""}, "replicaCount": 0})
