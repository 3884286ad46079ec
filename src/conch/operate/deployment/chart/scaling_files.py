"""Files of the chart that its templates of autoscalers read: queries, counters, rules of prometheus-adapter."""

from conch.base.yaml_documents import dump_documents
from conch.operate.deployment.kubernetes.scaling.scaling_metrics import POD_METRICS
from conch.operate.deployment.values.conflicts import COUNTERS


def pod_metrics_file() -> str:
    """Return the queries for one value per pod, with `%s` for the matchers."""
    return dump_documents([{name: metric.by("pod", "%s") for name, metric in POD_METRICS.items()}])


def counters_file() -> str:
    """Return the names of the series that only grow."""
    return dump_documents([sorted(COUNTERS)])
