"""The HorizontalPodAutoscaler, on metrics of the pods and on resources."""

from collections.abc import Iterator
from typing import Any

from conch.operate.deployment.kubernetes.release import Release
from conch.operate.deployment.values.deployment import DeploymentValues
from conch.operate.deployment.values.scaling.autoscaling import AutoscalingValues, PodMetricValues, ResourceMetricValues

# Helm creates the ScaledObject of another type of autoscaling before it deletes this object, and KEDA's webhook refuses
# a second autoscaler. KEDA's own HorizontalPodAutoscaler has another name, so each type can replace the other.
_REPLACEABLE = {"validations.keda.sh/hpa-ownership": "false"}


def horizontal_pod_autoscaler(values: DeploymentValues, release: Release) -> Iterator[dict[str, Any]]:
    """Yield the HorizontalPodAutoscaler, if the values ask for one."""
    if values.autoscaling.type == "hpa":
        yield horizontal_pod_autoscaler_object(values, release)


def horizontal_pod_autoscaler_object(values: DeploymentValues, release: Release) -> dict[str, Any]:
    """Return the object, whatever the type of autoscaling is."""
    scaling = values.autoscaling
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": release.metadata("autoscaler", labels=values.monitoring.labels, annotations=_REPLACEABLE),
        "spec": {
            "scaleTargetRef": scale_target(values, release),
            "minReplicas": scaling.min_replicas,
            "maxReplicas": scaling.max_replicas,
            "metrics": [
                *map(_pods, scaling.metrics),
                *map(resource_metric, scaling.resources),
                *(dict(each) for each in scaling.custom_metrics),
            ],
            "behavior": behavior(scaling),
        },
    }


def scale_target(values: DeploymentValues, release: Release) -> dict[str, Any]:
    """Return the reference to the workload."""
    return {"apiVersion": "apps/v1", "kind": values.workload.kind, "name": release.name}


def behavior(scaling: AutoscalingValues) -> dict[str, Any]:
    """Return how fast the number of replicas changes."""
    return {"scaleUp": dict(scaling.behavior.scale_up), "scaleDown": dict(scaling.behavior.scale_down)}


def _pods(metric: PodMetricValues) -> dict[str, Any]:
    target = {"type": "AverageValue", "averageValue": str(metric.average_value)}
    return {"type": "Pods", "pods": {"metric": {"name": metric.name}, "target": target}}


def resource_metric(metric: ResourceMetricValues) -> dict[str, Any]:
    """Return a metric of a resource of the pods."""
    target = {"type": "Utilization", "averageUtilization": metric.average_utilization}
    return {"type": "Resource", "resource": {"name": metric.name, "target": target}}
