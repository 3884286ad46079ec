"""Envoy 1.25 and later: a static bootstrap configuration.

One cluster per way to select a replica and protocol; each checks the health of its replicas.
"""

from typing import Any

from conch.base.yaml_documents import dump_documents
from conch.operate.deployment.load_balancers.description import LoadBalancer

_TYPES = "type.googleapis.com/envoy.extensions"
_RING_SIZE = 1024
_H2_STREAM_WINDOW_BYTES = 1024 * 1024


def envoy_configuration(balancer: LoadBalancer) -> str:
    """Return envoy.yaml."""
    kinds = ("", "_sequence", "_prefix")
    document: dict[str, Any] = {
        "static_resources": {
            "listeners": [_listener(balancer, protocol) for protocol in ("http", "grpc")],
            "clusters": [_cluster(balancer, protocol, kind) for protocol in ("http", "grpc") for kind in kinds],
        }
    }
    if balancer.metrics_port:
        document["admin"] = {"address": _address("127.0.0.1", balancer.metrics_port)}
    return dump_documents([document])


def _address(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}


def _listener(balancer: LoadBalancer, protocol: str) -> dict[str, Any]:
    chain: dict[str, Any] = {
        "filters": [
            {"name": "envoy.filters.network.http_connection_manager", "typed_config": _manager(balancer, protocol)}
        ]
    }
    if balancer.tls is not None:
        files = {
            "certificate_chain": {"filename": balancer.tls.certificate},
            "private_key": {"filename": balancer.tls.key},
        }
        chain["transport_socket"] = {
            "name": "envoy.transport_sockets.tls",
            "typed_config": {
                "@type": f"{_TYPES}.transport_sockets.tls.v3.DownstreamTlsContext",
                "common_tls_context": {
                    "tls_certificates": [files],
                    "alpn_protocols": ["h2" if protocol == "grpc" else "http/1.1"],
                },
            },
        }
    return {
        "name": f"{protocol}_in",
        "address": _address(balancer.address, balancer.http_port if protocol == "http" else balancer.grpc_port),
        "filter_chains": [chain],
    }


def _manager(balancer: LoadBalancer, protocol: str) -> dict[str, Any]:
    times = balancer.timeouts
    affinity = balancer.affinity
    manager: dict[str, Any] = {
        "@type": f"{_TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": protocol,
        "codec_type": "HTTP2" if protocol == "grpc" else "AUTO",
        "use_remote_address": True,
        "request_headers_timeout": f"{times.request_head_s}s",
        "stream_idle_timeout": f"{times.silence_s}s",
        "max_request_headers_kb": balancer.max_header_bytes // 1024,
        "common_http_protocol_options": {
            "idle_timeout": f"{times.silence_s if protocol == 'grpc' else times.keep_alive_s}s"
        },
        "route_config": {
            "name": protocol,
            "virtual_hosts": [
                {
                    "name": "conch",
                    "domains": ["*"],
                    "routes": [
                        _route(balancer, f"{protocol}_sequence", affinity.sequence),
                        _route(balancer, f"{protocol}_prefix", affinity.prefix),
                        _route(balancer, protocol, ""),
                    ],
                }
            ],
        },
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{_TYPES}.filters.http.router.v3.Router"},
            }
        ],
    }
    if balancer.access_log:
        log = {"@type": f"{_TYPES}.access_loggers.stream.v3.StdoutAccessLog"}
        manager["access_log"] = [{"name": "envoy.access_loggers.stdout", "typed_config": log}]
    return manager


def _route(balancer: LoadBalancer, cluster: str, header: str) -> dict[str, Any]:
    match: dict[str, Any] = {"prefix": "/"}
    action: dict[str, Any] = {
        "cluster": cluster,
        "timeout": "0s",
        "retry_policy": {"retry_on": "connect-failure,refused-stream", "num_retries": balancer.retries},
    }
    if header:
        match["headers"] = [{"name": header, "present_match": True}]
        action["hash_policy"] = [{"header": {"header_name": header}}]
    return {"match": match, "route": action}


def _cluster(balancer: LoadBalancer, protocol: str, kind: str) -> dict[str, Any]:
    http2 = {"initial_stream_window_size": _H2_STREAM_WINDOW_BYTES}
    explicit: dict[str, Any] = (
        {"http2_protocol_options": http2} if protocol == "grpc" else {"http_protocol_options": {}}
    )
    cluster: dict[str, Any] = {
        "name": f"{protocol}{kind}",
        "type": "STRICT_DNS",
        "connect_timeout": f"{balancer.timeouts.connect_s}s",
        "lb_policy": "RING_HASH" if kind else "LEAST_REQUEST",
        "load_assignment": {
            "cluster_name": f"{protocol}{kind}",
            "endpoints": [
                {"lb_endpoints": [_endpoint(balancer, index, protocol) for index in range(len(balancer.replicas))]}
            ],
        },
        "health_checks": [_health_check(balancer, protocol)],
        "outlier_detection": {
            # Failed connections and timeouts count, error responses of models do not.
            "split_external_local_origin_errors": True,
            "consecutive_local_origin_failure": balancer.ejection.errors,
            "enforcing_consecutive_local_origin_failure": 100,
            "enforcing_consecutive_5xx": 0,
            "enforcing_success_rate": 0,
            "enforcing_local_origin_success_rate": 0,
            "base_ejection_time": f"{balancer.ejection.seconds}s",
            "max_ejection_percent": 50,
        },
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": f"{_TYPES}.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": explicit,
            }
        },
    }
    if kind:
        cluster["ring_hash_lb_config"] = {"minimum_ring_size": _RING_SIZE}
    if kind == "_prefix":
        bounded = {"hash_balance_factor": balancer.affinity.load_factor}
        cluster["common_lb_config"] = {"consistent_hashing_lb_config": bounded}
    return cluster


def _endpoint(balancer: LoadBalancer, index: int, protocol: str) -> dict[str, Any]:
    replica = balancer.replicas[index]
    endpoint: dict[str, Any] = {
        "address": _address(replica.host, replica.http_port if protocol == "http" else replica.grpc_port)
    }
    value: dict[str, Any] = {"endpoint": endpoint, "load_balancing_weight": replica.weight}
    if replica.state != "ready":
        value["health_status"] = "DRAINING"
    return value


def _health_check(balancer: LoadBalancer, protocol: str) -> dict[str, Any]:
    health = balancer.health
    how: dict[str, Any] = (
        {"http_health_check": {"path": health.path}} if protocol == "http" else {"grpc_health_check": {}}
    )
    return {
        "timeout": f"{health.timeout_s}s",
        "interval": f"{health.interval_s}s",
        "no_traffic_interval": f"{health.interval_s}s",
        "unhealthy_threshold": health.fall,
        "healthy_threshold": health.rise,
        **how,
    }
