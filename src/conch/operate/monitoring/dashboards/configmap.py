"""ConfigMaps that the sidecar of Grafana's Helm charts loads as dashboards."""

from typing import Any

from conch.operate.monitoring.dashboards.grafana import dashboard_json
from conch.operate.monitoring.dashboards.panel import GrafanaDashboard

# `kubectl apply` stores the whole object in an annotation, which may have 256 KiB; a ConfigMap may have 1 MiB.
MAX_BYTES = 256 * 1024
SIDECAR_LABEL = ("grafana_dashboard", "1")


def config_map(
    dashboard: GrafanaDashboard, namespace: str = "", label: tuple[str, str] = SIDECAR_LABEL, folder: str = ""
) -> dict[str, Any]:
    """Return the ConfigMap of a dashboard. Raises ValueError if it is too large for `kubectl apply`."""
    text = dashboard_json(dashboard)
    if len(text.encode()) > MAX_BYTES:
        raise ValueError(f"the dashboard {dashboard.uid} has more than {MAX_BYTES} bytes")
    metadata: dict[str, Any] = {"name": f"dashboard-{dashboard.uid}"}
    if namespace:
        metadata["namespace"] = namespace
    metadata["labels"] = {"app.kubernetes.io/name": "conch", label[0]: label[1]}
    if folder:
        metadata["annotations"] = {"grafana_folder": folder}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {f"{dashboard.uid}.json": text}}
