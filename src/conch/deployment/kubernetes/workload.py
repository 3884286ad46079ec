"""The workload that runs the server."""

from collections.abc import Iterator
from typing import Any

from conch.deployment.kubernetes.limit_annotations import limit_annotations
from conch.deployment.kubernetes.release import Release
from conch.deployment.kubernetes.services import CONTAINER_PORTS
from conch.deployment.values.deployment import DeploymentValues
from conch.deployment.values.image import ImageValues


def workload(values: DeploymentValues, release: Release) -> Iterator[dict[str, Any]]:
    """Yield the Deployment."""
    yield {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": release.metadata("server", annotations=limit_annotations(values.limits)),
        "spec": {
            # An upgrade would undo what the autoscaler has done.
            **({"replicas": values.replica_count} if values.autoscaling.type == "none" else {}),
            "selector": {"matchLabels": release.selector},
            "template": {
                "metadata": {"labels": release.labels("server")},
                "spec": {"containers": [_server(values, release)]},
            },
        },
    }


def image(values: ImageValues, release: Release) -> str:
    """Return the reference of the image."""
    if values.digest:
        return f"{values.repository}@{values.digest}"
    return f"{values.repository}:{values.tag or release.chart_version}"


def _server(values: DeploymentValues, release: Release) -> dict[str, Any]:
    return {
        "name": "server",
        "image": image(values.image, release),
        "imagePullPolicy": values.image.pull_policy,
        "args": ["serve", "--model-repository=/models"],
        "ports": [{"name": name, "containerPort": port} for name, port in CONTAINER_PORTS.items()],
    }
