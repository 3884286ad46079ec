"""Dashboards as ConfigMaps, which the sidecar of Grafana loads."""

from collections.abc import Iterator
from typing import Any

from conch.operate.deployment.kubernetes.release import Release
from conch.operate.deployment.values.deployment import DeploymentValues


def dashboards(values: DeploymentValues, release: Release) -> Iterator[dict[str, Any]]:
    """Yield a ConfigMap for each dashboard, if the values ask for them."""
    wanted = values.monitoring.dashboards
    if not values.monitoring.enabled or not wanted.enabled:
        return
    # Grafana's library costs a third of a second, which others need not pay.
    from conch.operate.monitoring.dashboards.catalog import all_dashboards
    from conch.operate.monitoring.dashboards.grafana import dashboard_json

    annotations = {"grafana_folder": wanted.folder} if wanted.folder else {}
    for each in all_dashboards():
        yield {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": release.metadata(
                "dashboard",
                f"-{each.uid.removeprefix('conch-')}-dashboard",
                labels=wanted.labels,
                annotations=annotations,
            ),
            "data": {f"{each.uid}.json": dashboard_json(each)},
        }
