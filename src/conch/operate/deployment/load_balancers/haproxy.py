"""HAProxy 2.4 and later.

Reload without losing a request: `haproxy -W -f FILE`, then SIGUSR2. One backend per way to select a replica; the health
checks of `http` hold for the others, which track its servers.
"""

from collections.abc import Iterator

from conch.operate.deployment.load_balancers.description import BalancedReplica, LoadBalancer

_H2_WINDOW_BYTES = 1024 * 1024
# Request lines, with the trace id that Conch's log and traces have. TR: request, Tw: queue, Tc: connect, Tr: response.
_LOG_FORMAT = (
    "%ci:%cp %ft %b/%s %TR/%Tw/%Tc/%Tr/%Ta %ST %B %ts %ac/%sc/%rc traceparent=%[var(txn.traceparent)] "
    "%HM %[var(txn.path)]"
)
_STATES = {"ready": "", "drain": " weight 0", "down": " disabled"}


def haproxy_configuration(balancer: LoadBalancer) -> str:
    """Return haproxy.cfg."""
    sections = [_global(balancer), _defaults(balancer), *_frontends(balancer), *_backends(balancer)]
    return "\n\n".join("\n    ".join(section) for section in sections) + "\n"


def _global(balancer: LoadBalancer) -> list[str]:
    lines = ["global"]
    if balancer.access_log:
        lines.append("log stdout format raw local0")
    if balancer.admin_socket:
        lines.append(f"stats socket {balancer.admin_socket} mode 600 level admin expose-fd listeners")
    return [
        *lines,
        f"tune.bufsize {balancer.max_header_bytes + 16384}",
        f"tune.h2.initial-window-size {_H2_WINDOW_BYTES}",
        f"hard-stop-after {balancer.timeouts.silence_s}s",
    ]


def _defaults(balancer: LoadBalancer) -> list[str]:
    times = balancer.timeouts
    log = ["log global", f"log-format '{_LOG_FORMAT}'"] if balancer.access_log else []
    return [
        "defaults",
        "mode http",
        *log,
        f"timeout connect {times.connect_s}s",
        f"timeout http-request {times.request_head_s}s",
        f"timeout http-keep-alive {times.keep_alive_s}s",
        f"timeout client {times.silence_s}s",
        f"timeout server {times.silence_s}s",
        f"timeout check {balancer.health.timeout_s}s",
        "# Send parts of responses at once: events of token streams.",
        "option http-no-delay",
        "option clitcpka",
        "option srvtcpka",
        "# Another replica only if the connection failed: then nothing was sent.",
        f"retries {balancer.retries}",
        "retry-on conn-failure",
        "option redispatch 1",
    ]


def _frontends(balancer: LoadBalancer) -> Iterator[list[str]]:
    certificate = f" ssl crt {balancer.tls.certificate}" if balancer.tls else ""
    for name, port, protocol in (
        ("http", balancer.http_port, f"{certificate} alpn http/1.1" if certificate else ""),
        ("grpc", balancer.grpc_port, f"{certificate} alpn h2" if certificate else " proto h2"),
    ):
        lines = [
            f"frontend {name}_in",
            f"bind {balancer.address}:{port}{protocol}",
            "http-request set-var(txn.traceparent) req.hdr(traceparent)",
            "http-request set-var(txn.path) path",
            "option forwardfor",
        ]
        if balancer.tls:
            lines.append("http-request set-header x-forwarded-proto https")
        if balancer.max_body_bytes:
            lines.append(f"http-request deny deny_status 413 if {{ req.body_size gt {balancer.max_body_bytes} }}")
        yield [
            *lines,
            f"use_backend {name}_sequence if {{ req.hdr({balancer.affinity.sequence}) -m found }}",
            f"use_backend {name}_prefix if {{ req.hdr({balancer.affinity.prefix}) -m found }}",
            f"default_backend {name}",
        ]
    if balancer.metrics_port:
        yield [
            "frontend metrics",
            f"bind {balancer.address}:{balancer.metrics_port}",
            "http-request use-service prometheus-exporter if { path /metrics }",
        ]


def _backends(balancer: LoadBalancer) -> Iterator[list[str]]:
    health, ejection, affinity = balancer.health, balancer.ejection, balancer.affinity
    check = (
        f" check inter {health.interval_s}s fall {health.fall} rise {health.rise}"
        f" observe layer4 error-limit {ejection.errors} on-error mark-down"
    )
    yield [
        "backend http",
        "balance leastconn",
        "option httpchk",
        f"http-check send meth GET uri {health.path} ver HTTP/1.1 hdr Host conch",
        "http-check expect status 200",
        *(_server(each, each.http_port, check) for each in balancer.replicas),
    ]
    yield ["backend grpc", "balance leastconn", *_followers(balancer, "grpc")]
    for protocol in ("http", "grpc"):
        yield [
            f"backend {protocol}_sequence",
            "# A sequence stays on its replica, also while that one drains or replicas come.",
            f"balance hdr({affinity.sequence})",
            "hash-type consistent sdbm avalanche",
            f"stick on req.hdr({affinity.sequence}) table sequences",
            "force-persist if TRUE",
            *_followers(balancer, protocol),
        ]
    for protocol in ("http", "grpc"):
        yield [
            f"backend {protocol}_prefix",
            f"balance hdr({affinity.prefix})",
            "hash-type consistent sdbm avalanche",
            f"hash-balance-factor {affinity.load_factor}",
            *_followers(balancer, protocol),
        ]
    yield ["backend sequences", f"stick-table type string len 128 size 1m expire {affinity.expire_s}s"]


def _followers(balancer: LoadBalancer, protocol: str) -> Iterator[str]:
    """Yield servers whose state is that of the servers of `http`."""
    for each in balancer.replicas:
        if protocol == "http":
            yield _server(each, each.http_port, f" track http/{each.name}")
        else:
            yield _server(each, each.grpc_port, f" proto h2 track http/{each.name}")


def _server(replica: BalancedReplica, port: int, options: str) -> str:
    weight = "" if replica.weight == 1 or replica.state == "drain" else f" weight {replica.weight}"
    return f"server {replica.name} {replica.host}:{port}{options}{weight}{_STATES[replica.state]}"
