"""The Service for metrics."""

from typing import Annotated

from msgspec import Meta, field

from conch.operate.deployment.values.section import Annotations, Labels, Port, Section


class MetricsServiceValues(Section, frozen=True):
    """The headless Service `<release>-metrics`, which a ServiceMonitor selects by its labels."""

    port: Annotated[Port, Meta(description="Port of the Service for metrics")] = 8002
    labels: Annotated[Labels, Meta(description="More labels of the Service")] = field(default_factory=dict)
    annotations: Annotated[Annotations, Meta(description="Annotations of the Service")] = field(default_factory=dict)
