"""All values of a deployment."""

from typing import Annotated

from msgspec import Meta, field

from conch.deployment.values.image import ImageValues
from conch.deployment.values.section import Count, Section


class DeploymentValues(Section, frozen=True):
    """The values of a release: what values.yaml of the chart contains."""

    replica_count: Annotated[Count, Meta(description="Replicas; an autoscaler takes precedence")] = 1
    image: Annotated[ImageValues, Meta(description="The server's image")] = field(default_factory=ImageValues)
