"""The release of a deployment: its name and namespace, and the names and labels of its objects."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from conch.operate.deployment.kubernetes.parts import without_empty


@dataclass(frozen=True, slots=True)
class Release:
    """What `helm install NAME --namespace NAMESPACE` says, and the version of the chart."""

    name: str
    namespace: str = "default"
    chart_version: str = "0.0.0"

    @property
    def selector(self) -> dict[str, str]:
        """The labels by which Services, monitors and the workload find the pods of the server."""
        return {"app": self.name, "app.kubernetes.io/component": "server"}

    def labels(self, component: str) -> dict[str, str]:
        """Return the labels of an object."""
        return {
            "app": self.name,
            "app.kubernetes.io/name": "conch",
            "app.kubernetes.io/instance": self.name,
            "app.kubernetes.io/component": component,
            "app.kubernetes.io/version": self.chart_version,
            "app.kubernetes.io/managed-by": "Helm",
        }

    def metadata(
        self,
        component: str,
        suffix: str = "",
        *,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Return the metadata of an object that is called like the release, with a suffix such as `-metrics`."""
        return without_empty(
            {
                "name": self.name + suffix,
                "namespace": self.namespace,
                "labels": {**self.labels(component), **(labels or {})},
                "annotations": dict(annotations or {}),
            }
        )
