"""All values of a deployment."""

from typing import Annotated

from msgspec import Meta, field

from conch.deployment.values.image import ImageValues
from conch.deployment.values.metrics_service import MetricsServiceValues
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
