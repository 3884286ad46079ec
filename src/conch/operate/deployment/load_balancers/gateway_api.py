"""The Gateway API of Kubernetes: a Gateway, an HTTPRoute and a GRPCRoute of the standard channel.

Health is that of the pods: their readiness probes. Affinity, ejection and connection timeouts are not standard yet:
policies of the implementation have them.
"""

from typing import Any

from conch.operate.deployment.load_balancers.description import LoadBalancer, RoutedService

_API = "gateway.networking.k8s.io/v1"


def gateway_objects(service: RoutedService, balancer: LoadBalancer, gateway_class: str) -> list[dict[str, Any]]:
    """Return the objects. Port 8001 of the Service needs `appProtocol: kubernetes.io/h2c`, as the chart writes it."""
    listeners = [
        {"name": name, "protocol": "HTTP", "port": port, "hostname": service.host}
        for name, port in (("http", balancer.http_port), ("grpc", balancer.grpc_port))
    ]
    http = {
        "backendRefs": [{"name": service.name, "port": service.http_port}],
        "timeouts": {"request": "0s", "backendRequest": "0s"},
    }
    return [
        _object(service, "Gateway", service.name, {"gatewayClassName": gateway_class, "listeners": listeners}),
        _route(service, "HTTPRoute", "http", http),
        _route(service, "GRPCRoute", "grpc", {"backendRefs": [{"name": service.name, "port": service.grpc_port}]}),
    ]


def _object(service: RoutedService, kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": _API, "kind": kind, "metadata": {"name": name, "namespace": service.namespace}, "spec": spec}


def _route(service: RoutedService, kind: str, protocol: str, rule: dict[str, Any]) -> dict[str, Any]:
    parent = {"name": service.name, "sectionName": protocol}
    spec = {"parentRefs": [parent], "hostnames": [service.host], "rules": [rule]}
    return _object(service, kind, f"{service.name}-{protocol}", spec)
