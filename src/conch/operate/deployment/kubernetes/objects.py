"""All objects of a release, in the order in which they are applied."""

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from conch.operate.deployment.kubernetes.monitoring.dashboards import dashboards
from conch.operate.deployment.kubernetes.monitoring.monitors import monitor
from conch.operate.deployment.kubernetes.monitoring.prometheus_rule import prometheus_rule
from conch.operate.deployment.kubernetes.network.network_policy import network_policy
from conch.operate.deployment.kubernetes.network.services import services
from conch.operate.deployment.kubernetes.pod.service_account import service_account
from conch.operate.deployment.kubernetes.pod.workload import workload
from conch.operate.deployment.kubernetes.release import Release
from conch.operate.deployment.kubernetes.scaling.adapter_rules import adapter_config_map
from conch.operate.deployment.kubernetes.scaling.disruption_budget import disruption_budget
from conch.operate.deployment.kubernetes.scaling.horizontal_pod_autoscaler import horizontal_pod_autoscaler
from conch.operate.deployment.kubernetes.scaling.scaled_object import scaled_object
from conch.operate.deployment.values.deployment import DeploymentValues

Builder: TypeAlias = Callable[[DeploymentValues, Release], Iterable[dict[str, Any]]]

# A line for each module of this package that builds objects; it yields none where the values ask for none.
_BUILDERS: tuple[Builder, ...] = (
    service_account,
    services,
    workload,
    disruption_budget,
    network_policy,
    monitor,
    prometheus_rule,
    dashboards,
    adapter_config_map,
    horizontal_pod_autoscaler,
    scaled_object,
)


def objects(values: DeploymentValues, release: Release) -> list[dict[str, Any]]:
    """Return the objects that `helm install` creates with these values, field by field equal to the chart's."""
    return [each for build in _BUILDERS for each in build(values, release)]
