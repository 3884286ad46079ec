"""The NetworkPolicy: who calls the server, who reads its metrics, what it connects to."""

from collections.abc import Iterator
from typing import Any

from conch.operate.deployment.kubernetes.network.services import GRPC, HTTP, METRICS
from conch.operate.deployment.kubernetes.release import Release
from conch.operate.deployment.values.deployment import DeploymentValues

# Kubernetes gives it to each namespace.
_NAMESPACE_LABEL = "kubernetes.io/metadata.name"
_DNS = {
    "to": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}}],
    "ports": [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")],
}


def network_policy(values: DeploymentValues, release: Release) -> Iterator[dict[str, Any]]:
    """Yield the NetworkPolicy, if the values ask for one."""
    policy = values.network_policy
    if not policy.enabled:
        return
    clients = [dict(each) for each in policy.clients] or [{"podSelector": {}}]
    spec: dict[str, Any] = {
        "podSelector": {"matchLabels": release.selector},
        "policyTypes": ["Ingress"],
        "ingress": [
            {"from": clients, "ports": [_port(HTTP), _port(GRPC)]},
            {
                "from": [{"namespaceSelector": {"matchLabels": {_NAMESPACE_LABEL: policy.metrics_namespace}}}],
                "ports": [_port(METRICS)],
            },
        ],
    }
    if policy.egress.enabled:
        spec["policyTypes"] = ["Ingress", "Egress"]
        spec["egress"] = [_DNS, *(dict(each) for each in policy.egress.rules)]
    yield {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": release.metadata("server"),
        "spec": spec,
    }


def _port(name: str) -> dict[str, Any]:
    return {"protocol": "TCP", "port": name}
