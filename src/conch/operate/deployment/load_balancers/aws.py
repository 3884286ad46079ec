"""AWS: an NLB by annotations of a Service, and an ALB by two Ingresses, for the AWS Load Balancer Controller 2.

An ALB balances HTTP and gRPC per request. An NLB balances connections: put HAProxy or Envoy behind it for gRPC.
"""

from typing import Any

from conch.operate.deployment.load_balancers.description import LoadBalancer, RoutedService

_MAX_ALB_IDLE_S = 4000
_MAX_NLB_IDLE_S = 6000
# The path that a target group of gRPC checks; 0 is the status OK.
_GRPC_HEALTH = "/grpc.health.v1.Health/Check"
_SERVICE = "service.beta.kubernetes.io/aws-load-balancer"
_INGRESS = "alb.ingress.kubernetes.io"


def nlb_service(service: RoutedService, balancer: LoadBalancer, selector: dict[str, str]) -> dict[str, Any]:
    """Return a Service of type LoadBalancer whose targets are the pods."""
    times = balancer.timeouts
    annotations = {
        f"{_SERVICE}-type": "external",
        f"{_SERVICE}-nlb-target-type": "ip",
        f"{_SERVICE}-scheme": "internal",
        f"{_SERVICE}-healthcheck-protocol": "HTTP",
        f"{_SERVICE}-healthcheck-port": str(service.http_port),
        f"{_SERVICE}-healthcheck-path": balancer.health.path,
        f"{_SERVICE}-healthcheck-success-codes": "200",
        f"{_SERVICE}-healthcheck-interval": "5",
        f"{_SERVICE}-healthcheck-timeout": "2",
        f"{_SERVICE}-healthcheck-healthy-threshold": "2",
        f"{_SERVICE}-healthcheck-unhealthy-threshold": "2",
        f"{_SERVICE}-attributes": "load_balancing.cross_zone.enabled=true",
        # Requests in flight end on the pod; connections to unhealthy targets stay open for them too.
        f"{_SERVICE}-target-group-attributes": _attributes(
            {
                "deregistration_delay.timeout_seconds": min(times.silence_s, 3600),
                "deregistration_delay.connection_termination.enabled": "false",
                "target_health_state.unhealthy.connection_termination.enabled": "false",
            }
        ),
        f"{_SERVICE}-listener-attributes.TCP-{service.http_port}": _idle(times.silence_s),
        f"{_SERVICE}-listener-attributes.TCP-{service.grpc_port}": _idle(times.silence_s),
    }
    ports = [
        {"name": name, "port": port, "targetPort": port, "protocol": "TCP"}
        for name, port in (("http", service.http_port), ("grpc", service.grpc_port))
    ]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": f"{service.name}-nlb", "namespace": service.namespace, "annotations": annotations},
        "spec": {"type": "LoadBalancer", "selector": selector, "ports": ports},
    }


def alb_ingresses(service: RoutedService, balancer: LoadBalancer, certificate_arn: str) -> list[dict[str, Any]]:
    """Return an Ingress for HTTP and one for gRPC of one ALB, which the group joins. gRPC needs HTTPS."""
    grpc = {
        f"{_INGRESS}/backend-protocol-version": "GRPC",
        f"{_INGRESS}/healthcheck-path": _GRPC_HEALTH,
        f"{_INGRESS}/success-codes": "0",
    }
    http = {
        f"{_INGRESS}/healthcheck-path": balancer.health.path,
        f"{_INGRESS}/success-codes": "200",
    }
    return [
        _ingress(service, balancer, certificate_arn, "http", service.http_port, http),
        _ingress(service, balancer, certificate_arn, "grpc", service.grpc_port, grpc),
    ]


def _ingress(
    service: RoutedService,
    balancer: LoadBalancer,
    certificate_arn: str,
    protocol: str,
    port: int,
    annotations: dict[str, str],
) -> dict[str, Any]:
    listener = 443 if protocol == "http" else 8443
    common = {
        f"{_INGRESS}/group.name": service.name,
        f"{_INGRESS}/scheme": "internal",
        f"{_INGRESS}/target-type": "ip",
        f"{_INGRESS}/listen-ports": f'[{{"HTTPS":{listener}}}]',
        f"{_INGRESS}/certificate-arn": certificate_arn,
        f"{_INGRESS}/healthcheck-interval-seconds": "5",
        f"{_INGRESS}/healthcheck-timeout-seconds": "2",
        f"{_INGRESS}/healthy-threshold-count": "2",
        f"{_INGRESS}/unhealthy-threshold-count": "2",
        f"{_INGRESS}/load-balancer-attributes": _attributes(
            {"idle_timeout.timeout_seconds": min(balancer.timeouts.silence_s, _MAX_ALB_IDLE_S)}
        ),
        f"{_INGRESS}/target-group-attributes": _attributes(
            {
                "load_balancing.algorithm.type": "least_outstanding_requests",
                "deregistration_delay.timeout_seconds": min(balancer.timeouts.silence_s, 3600),
            }
        ),
    }
    path = {"path": "/", "pathType": "Prefix", "backend": {"service": {"name": service.name, "port": {"number": port}}}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": {
            "name": f"{service.name}-{protocol}",
            "namespace": service.namespace,
            "annotations": {**common, **annotations},
        },
        "spec": {"ingressClassName": "alb", "rules": [{"host": service.host, "http": {"paths": [path]}}]},
    }


def _attributes(values: dict[str, object]) -> str:
    return ",".join(f"{key}={value}" for key, value in values.items())


def _idle(seconds: int) -> str:
    return f"tcp.idle_timeout.seconds={min(seconds, _MAX_NLB_IDLE_S)}"
