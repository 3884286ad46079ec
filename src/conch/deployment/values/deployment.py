"""All values of a deployment."""

from typing import Annotated

from msgspec import Meta, field

from conch.deployment.values.autoscaling import AutoscalingValues
from conch.deployment.values.disruption import DisruptionBudgetValues
from conch.deployment.values.image import ImageValues
from conch.deployment.values.limits import LimitAnnotationValues
from conch.deployment.values.metrics_service import MetricsServiceValues
from conch.deployment.values.monitoring import MonitoringValues
from conch.deployment.values.network import NetworkPolicyValues
from conch.deployment.values.section import Count, Section
from conch.deployment.values.service import ServiceValues


class DeploymentValues(Section, frozen=True):
    """The values of a release: what values.yaml of the chart contains."""

    replica_count: Annotated[Count, Meta(description="Replicas; an autoscaler takes precedence")] = 1
    image: Annotated[ImageValues, Meta(description="The server's image")] = field(default_factory=ImageValues)
    service: Annotated[ServiceValues, Meta(description="The Service for clients, called like the release")] = field(
        default_factory=ServiceValues
    )
    metrics_service: Annotated[
        MetricsServiceValues, Meta(description="The Service for metrics, `<release>-metrics`")
    ] = field(default_factory=MetricsServiceValues)
    monitoring: Annotated[MonitoringValues, Meta(description="Objects of the Prometheus operator")] = field(
        default_factory=MonitoringValues
    )
    autoscaling: Annotated[AutoscalingValues, Meta(description="How the number of replicas follows the load")] = field(
        default_factory=AutoscalingValues
    )
    disruption_budget: Annotated[
        DisruptionBudgetValues, Meta(description="How many pods may be missing while nodes are drained")
    ] = field(default_factory=DisruptionBudgetValues)
    network_policy: Annotated[NetworkPolicyValues, Meta(description="Who may connect to the pods")] = field(
        default_factory=NetworkPolicyValues
    )
    limits: Annotated[
        LimitAnnotationValues, Meta(description="Limits of requests and tokens per second, as annotations")
    ] = field(default_factory=LimitAnnotationValues)
