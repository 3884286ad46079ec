"""The PodMonitor or the ServiceMonitor, by which the Prometheus operator finds the metrics."""

from collections.abc import Iterator
from typing import Any

from conch.operate.deployment.kubernetes.network.services import METRICS
from conch.operate.deployment.kubernetes.release import Release
from conch.operate.deployment.values.deployment import DeploymentValues

_API_VERSION = "monitoring.coreos.com/v1"


def monitor(values: DeploymentValues, release: Release) -> Iterator[dict[str, Any]]:
    """Yield the monitor that the values ask for."""
    monitoring = values.monitoring
    if not monitoring.enabled or monitoring.monitor == "none":
        return
    endpoint: dict[str, Any] = {
        "port": METRICS,
        "path": "/metrics",
        "interval": f"{monitoring.interval_seconds}s",
        "scrapeTimeout": f"{monitoring.scrape_timeout_seconds}s",
        # While an init container copies models, the pod has an address but no server yet.
        "relabelings": [{"sourceLabels": ["__meta_kubernetes_pod_phase"], "regex": "Running", "action": "keep"}],
    }
    if monitoring.metric_relabelings:
        endpoint["metricRelabelings"] = [dict(each) for each in monitoring.metric_relabelings]
    of_pods = monitoring.monitor == "PodMonitor"
    component = "server" if of_pods else "metrics"
    yield {
        "apiVersion": _API_VERSION,
        "kind": monitoring.monitor,
        "metadata": release.metadata("autoscaler", labels=monitoring.labels),
        "spec": {
            # The job is the release; rules and queries of autoscalers select by it.
            "jobLabel": "app",
            "selector": {"matchLabels": {**release.selector, "app.kubernetes.io/component": component}},
            "podMetricsEndpoints" if of_pods else "endpoints": [endpoint],
        },
    }
