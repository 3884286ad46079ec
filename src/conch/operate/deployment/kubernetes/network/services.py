"""The Services of a release: for clients, and for metrics."""

from collections.abc import Iterator
from typing import Any

from conch.operate.deployment.kubernetes.release import Release
from conch.operate.deployment.values.deployment import DeploymentValues

HTTP, GRPC, METRICS = "http", "grpc", "metrics"
# Ports of the container; the ports of the Services lead to them by name.
CONTAINER_PORTS = {HTTP: 8000, GRPC: 8001, METRICS: 8002}
# Load balancers take it as: HTTP/2 without TLS.
_GRPC_PROTOCOL = "kubernetes.io/h2c"


def services(values: DeploymentValues, release: Release) -> Iterator[dict[str, Any]]:
    """Yield the Service for clients, and the one for metrics."""
    client = values.service
    yield {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": release.metadata("service", labels=client.labels, annotations=client.annotations),
        "spec": {
            "type": client.type,
            "selector": release.selector,
            "ports": [
                _port(HTTP, client.http_port, "http"),
                _port(GRPC, client.grpc_port, _GRPC_PROTOCOL),
                *([_port(METRICS, client.metrics_port, "http")] if client.metrics_port else []),
            ],
            **client.spec,
        },
    }
    metrics = values.metrics_service
    yield {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": release.metadata("metrics", "-metrics", labels=metrics.labels, annotations=metrics.annotations),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": release.selector,
            "ports": [_port(METRICS, metrics.port, "http")],
        },
    }


def _port(name: str, port: int, protocol: str) -> dict[str, Any]:
    return {"name": name, "port": port, "targetPort": name, "appProtocol": protocol}
