"""nginx 1.18 and later, without modules of NGINX Plus.

It has no health checks and learns from failed connections. To remove a replica: `state="down"` and a reload, or start
the server with --shutdown-delay-secs, so that nginx leaves its connections before the server closes them.
"""

from collections.abc import Iterator

from conch.operate.deployment.load_balancers.description import BalancedReplica, LoadBalancer

_KEPT_CONNECTIONS = 64
_LOG_FORMAT = (
    "$remote_addr:$remote_port $upstream_addr $request_time/$upstream_connect_time/$upstream_header_time "
    "$status upstream=$upstream_status $bytes_sent traceparent=$http_traceparent $request_method $uri"
)


def nginx_configuration(balancer: LoadBalancer) -> str:
    """Return nginx.conf."""
    lines = [
        "worker_processes auto;",
        *([f"pid {balancer.run_folder}/nginx.pid;"] if balancer.run_folder else []),
        "error_log stderr;",
        "events { worker_connections 16384; }",
        "",
        "http {",
        *_indented(_http(balancer)),
        "}",
    ]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _indented(lines: Iterator[str]) -> Iterator[str]:
    return (f"    {line}" for line in lines)


def _http(balancer: LoadBalancer) -> Iterator[str]:
    times = balancer.timeouts
    if balancer.access_log:
        yield f"log_format conch '{_LOG_FORMAT}';"
        yield "access_log /dev/stdout conch;"
    else:
        yield "access_log off;"
    if balancer.run_folder:
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        yield from (f"{kind}_temp_path {balancer.run_folder}/{kind};" for kind in kinds)
    yield from (
        f"client_header_timeout {times.request_head_s}s;",
        f"client_body_timeout {times.silence_s}s;  # the longest silence of a client in a gRPC stream",
        f"send_timeout {times.silence_s}s;",
        f"client_max_body_size {balancer.max_body_bytes};",
        f"large_client_header_buffers 8 {balancer.max_header_bytes};",
        "underscores_in_headers on;",
        "keepalive_requests 1000000;",
        "",
        "# Which group of replicas: by sequence, by prompt prefix, or the least loaded.",
    )
    sequence, prefix = (_variable(name) for name in (balancer.affinity.sequence, balancer.affinity.prefix))
    for protocol in ("http", "grpc"):
        yield f'map "{sequence} {prefix}" $conch_{protocol} {{'
        yield f'    " " conch_{protocol};'
        yield f'    "~^ " conch_{protocol}_prefix;'
        yield f"    default conch_{protocol}_sequence;"
        yield "}"
    for protocol in ("http", "grpc"):
        yield from _upstream(balancer, protocol, "", "least_conn;")
        yield from _upstream(balancer, protocol, "_sequence", f"hash {sequence} consistent;")
        yield from _upstream(balancer, protocol, "_prefix", f"hash {prefix} consistent;")
    yield from _http_server(balancer)
    yield from _grpc_server(balancer)


def _variable(header: str) -> str:
    return "$http_" + header.lower().replace("-", "_")


def _upstream(balancer: LoadBalancer, protocol: str, suffix: str, method: str) -> Iterator[str]:
    yield ""
    yield f"upstream conch_{protocol}{suffix} {{"
    yield f"    zone conch_{protocol}{suffix} 256k;"
    yield f"    {method}"
    for each in balancer.replicas:
        port = each.http_port if protocol == "http" else each.grpc_port
        yield f"    {_server(balancer, each, port)}"
    yield f"    keepalive {_KEPT_CONNECTIONS};"
    yield "    keepalive_requests 1000000;"
    yield f"    keepalive_timeout {_upstream_keep_alive_s(balancer)}s;"
    yield "}"


def _upstream_keep_alive_s(balancer: LoadBalancer) -> int:
    """Return how long idle connections to replicas stay open: less than a replica's shutdown delay (10 s is usual)."""
    return min(5, balancer.timeouts.keep_alive_s)


def _server(balancer: LoadBalancer, replica: BalancedReplica, port: int) -> str:
    ejection = balancer.ejection
    weight = "" if replica.weight == 1 else f" weight={replica.weight}"
    state = "" if replica.state == "ready" else " down"
    failures = f"max_fails={ejection.errors} fail_timeout={ejection.seconds}s"
    return f"server {replica.host}:{port} {failures}{weight}{state};"


def _listen(balancer: LoadBalancer, port: int, http2: str) -> Iterator[str]:
    yield ""
    yield "server {"
    if balancer.tls is None:
        yield f"    listen {balancer.address}:{port}{http2};"
        return
    yield f"    listen {balancer.address}:{port} ssl{http2};"
    yield f"    ssl_certificate {balancer.tls.certificate};"
    yield f"    ssl_certificate_key {balancer.tls.key};"


def _http_server(balancer: LoadBalancer) -> Iterator[str]:
    times = balancer.timeouts
    yield from _listen(balancer, balancer.http_port, "")
    yield from (
        f"    keepalive_timeout {times.keep_alive_s}s;",
        "    location / {",
        "        proxy_pass http://$conch_http;",
        "        proxy_http_version 1.1;",
        '        proxy_set_header Connection "";',
        "        proxy_set_header Host $http_host;",
        "        proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;",
        "        proxy_set_header X-Forwarded-Proto $scheme;",
        "        # Tensors and token streams pass at once, not through files.",
        "        proxy_request_buffering off;",
        "        proxy_buffering off;",
        f"        proxy_connect_timeout {times.connect_s}s;",
        f"        proxy_send_timeout {times.silence_s}s;",
        f"        proxy_read_timeout {times.silence_s}s;",
        "        proxy_socket_keepalive on;",
        "        # POST requests go elsewhere only if the connection failed: nginx adds no non_idempotent here.",
        "        proxy_next_upstream error timeout;",
        f"        proxy_next_upstream_tries {balancer.retries + 1};",
        "    }",
        "}",
    )


def _grpc_server(balancer: LoadBalancer) -> Iterator[str]:
    times = balancer.timeouts
    yield from _listen(balancer, balancer.grpc_port, " http2")
    yield from (
        f"    keepalive_timeout {times.silence_s}s;",
        "    http2_max_concurrent_streams 1000;",
        "    location / {",
        "        grpc_pass grpc://$conch_grpc;",
        "        grpc_set_header Host $http_host;",
        "        grpc_set_header X-Forwarded-For $proxy_add_x_forwarded_for;",
        "        grpc_set_header X-Forwarded-Proto $scheme;",
        f"        grpc_connect_timeout {times.connect_s}s;",
        f"        grpc_send_timeout {times.silence_s}s;",
        f"        grpc_read_timeout {times.silence_s}s;",
        "        grpc_socket_keepalive on;",
        "        grpc_next_upstream error timeout;",
        f"        grpc_next_upstream_tries {balancer.retries + 1};",
        "    }",
        "}",
    )
