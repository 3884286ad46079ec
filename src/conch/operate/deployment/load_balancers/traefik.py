"""Traefik 3: the file provider, and IngressRoutes for Kubernetes.

Traefik selects no replica by a header: sequences stay on theirs by a cookie, which clients must return.
"""

from typing import Any

from conch.base.yaml_documents import dump_documents
from conch.operate.deployment.load_balancers.description import LoadBalancer, RoutedService

_COOKIE = {"name": "conch-replica", "httpOnly": True}
_RULE = "PathPrefix(`/`)"


def traefik_static_configuration(balancer: LoadBalancer, dynamic_file: str) -> str:
    """Return traefik.yaml, which names the file of `traefik_dynamic_configuration`."""
    times = balancer.timeouts
    # A limit of reading would end gRPC streams of clients and long uploads.
    timeouts = {"readTimeout": "0s", "writeTimeout": "0s", "idleTimeout": f"{times.keep_alive_s}s"}
    document: dict[str, Any] = {
        "entryPoints": {
            name: {"address": f"{balancer.address}:{port}", "transport": {"respondingTimeouts": timeouts}}
            for name, port in (("http", balancer.http_port), ("grpc", balancer.grpc_port))
        },
        "providers": {"file": {"filename": dynamic_file, "watch": True}},
    }
    if balancer.access_log:
        document["accessLog"] = {"format": "json", "fields": {"headers": {"names": {"traceparent": "keep"}}}}
    return dump_documents([document])


def traefik_dynamic_configuration(balancer: LoadBalancer) -> str:
    """Return the routers and services. Traefik reads the file again when it changes."""
    services: dict[str, Any] = {}
    routers: dict[str, Any] = {}
    for protocol in ("http", "grpc"):
        for kind in ("", "-sequence"):
            services[f"{protocol}{kind}"] = {"loadBalancer": _service(balancer, protocol, sticky=bool(kind))}
        header = f"{_RULE} && HeaderRegexp(`{balancer.affinity.sequence}`, `.+`)"
        for name, rule in ((protocol, _RULE), (f"{protocol}-sequence", header)):
            routers[name] = {"entryPoints": [protocol], "rule": rule, "service": name, "middlewares": ["retry"]}
            if balancer.tls is not None:
                routers[name]["tls"] = {}
    document: dict[str, Any] = {
        "http": {
            "routers": routers,
            "services": services,
            # Traefik retries only requests of which no byte was sent.
            "middlewares": {"retry": {"retry": {"attempts": balancer.retries + 1}}},
            "serversTransports": {"conch": _transport(balancer)},
        }
    }
    if balancer.tls is not None:
        document["tls"] = {"certificates": [{"certFile": balancer.tls.certificate, "keyFile": balancer.tls.key}]}
    return dump_documents([document])


def _service(balancer: LoadBalancer, protocol: str, *, sticky: bool) -> dict[str, Any]:
    health = balancer.health
    replicas = [each for each in balancer.replicas if each.state == "ready"]
    scheme, mode = ("http", "http") if protocol == "http" else ("h2c", "grpc")
    ports = {each.name: each.http_port if protocol == "http" else each.grpc_port for each in replicas}
    check = {"mode": mode, "interval": f"{health.interval_s}s", "timeout": f"{health.timeout_s}s"}
    return {
        "servers": [{"url": f"{scheme}://{each.host}:{ports[each.name]}", "weight": each.weight} for each in replicas],
        "healthCheck": {**check, **({"path": health.path} if protocol == "http" else {})},
        "serversTransport": "conch",
        "responseForwarding": {"flushInterval": "1ms"},
        **({"sticky": {"cookie": _COOKIE}} if sticky else {}),
    }


def _transport(balancer: LoadBalancer) -> dict[str, Any]:
    times = balancer.timeouts
    return {
        "forwardingTimeouts": {
            "dialTimeout": f"{times.connect_s}s",
            "responseHeaderTimeout": "0s",
            "idleConnTimeout": f"{times.keep_alive_s}s",
        }
    }


def traefik_objects(service: RoutedService, balancer: LoadBalancer) -> list[dict[str, Any]]:
    """Return a ServersTransport, a Middleware and the IngressRoutes in front of a Service of Kubernetes.

    Traefik sends requests to the ready pods of the Service, not to its address.
    """
    api = "traefik.io/v1alpha1"

    def named(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
        metadata = {"name": name, "namespace": service.namespace}
        return {"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec}

    def target(port: int, scheme: str, *, sticky: bool) -> dict[str, Any]:
        cookie = {"sticky": {"cookie": _COOKIE}} if sticky else {}
        named_target = {"name": service.name, "port": port, "scheme": scheme, "serversTransport": service.name}
        return {**named_target, "responseForwarding": {"flushInterval": "1ms"}, **cookie}

    objects = [
        named("ServersTransport", service.name, _transport(balancer)),
        named("Middleware", f"{service.name}-retry", {"retry": {"attempts": balancer.retries + 1}}),
    ]
    for protocol, port, scheme in (("http", service.http_port, "http"), ("grpc", service.grpc_port, "h2c")):
        host = f"Host(`{service.host}`)"
        sequence = f"{host} && HeaderRegexp(`{balancer.affinity.sequence}`, `.+`)"
        routes = [
            {
                "kind": "Rule",
                "match": match,
                "middlewares": [{"name": f"{service.name}-retry"}],
                "services": [target(port, scheme, sticky=match == sequence)],
            }
            for match in (host, sequence)
        ]
        objects.append(
            named("IngressRoute", f"{service.name}-{protocol}", {"entryPoints": [protocol], "routes": routes})
        )
    return objects
