"""All dashboards."""

from conch.operate.monitoring.dashboards.gpu import DcgmNames, gpu_dashboard
from conch.operate.monitoring.dashboards.language_models import LANGUAGE_MODELS
from conch.operate.monitoring.dashboards.limits import LIMITS
from conch.operate.monitoring.dashboards.panel import GrafanaDashboard
from conch.operate.monitoring.dashboards.serving import AUTOSCALING, OVERVIEW, QUEUES, RESOURCES, STAGES


def all_dashboards(names: DcgmNames = "legacy") -> tuple[GrafanaDashboard, ...]:
    """Return the dashboards, with DCGM's names before or since 4.7."""
    return (OVERVIEW, STAGES, QUEUES, RESOURCES, gpu_dashboard(names), LANGUAGE_MODELS, LIMITS, AUTOSCALING)
