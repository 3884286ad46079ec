"""Load balancers in front of replicas: one description, and the configurations of HAProxy, nginx, Envoy and Traefik.

HTTP and gRPC have a listener each. Both are balanced per request; connections to replicas are kept open and shared.
The folder `templates` has the texts of the programs.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined

# ready: gets requests. drain: gets no new ones, except those of sequences that it serves. down: gets none.
ReplicaState = Literal["ready", "drain", "down"]
_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True, slots=True)
class BalancedReplica:
    """One replica. `weight` is its share of requests relative to the others."""

    name: str
    host: str
    http_port: int = 8000
    grpc_port: int = 8001
    weight: int = 1
    state: ReplicaState = "ready"


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """When a replica gets requests: after `rise` successful checks in a row, until `fall` failed ones."""

    path: str = "/v2/health/ready"
    interval_s: int = 1
    timeout_s: int = 2
    rise: int = 1
    fall: int = 2


@dataclass(frozen=True, slots=True)
class Ejection:
    """Eject a replica after `errors` failed connections or timeouts in a row.

    It returns when its health check succeeds, and with a load balancer that has no such checks after `seconds`.
    Error responses of a model do not count: one broken model would eject every replica that serves it.
    """

    errors: int = 3
    seconds: int = 10


@dataclass(frozen=True, slots=True)
class Affinity:
    """Headers that select the replica; proxies read no bodies. Without either header the least loaded one is selected.

    `sequence` identifies a Triton sequence, whose state one replica has: strict. `prefix` identifies requests with the
    same beginning of the prompt, which one replica has in its cache: preferred, up to `load_factor` per cent of the
    average load. `expire_s` is how long an idle sequence is remembered.
    """

    sequence: str = "x-session-id"
    prefix: str = "x-prompt-cache-key"
    load_factor: int = 125
    expire_s: int = 600


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds. `silence_s` is how long a request or stream may pass without a byte in one direction.

    A token stream may last any time.
    """

    connect_s: int = 2
    request_head_s: int = 10
    keep_alive_s: int = 60
    silence_s: int = 3600


@dataclass(frozen=True, slots=True)
class ListenerTls:
    """PEM files of the listeners. HAProxy reads the key from the certificate's file, or from a file named `….key`."""

    certificate: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadBalancer:
    """A load balancer in front of replicas.

    `retries` are attempts to connect elsewhere. Nothing else is retried: a request whose bytes reached a replica may
    have run there. HAProxy: `admin_socket` is a path for its runtime API, `metrics_port` the port of its metrics; 0 for
    none. nginx: `run_folder` has its temporary files and process id, for users that may not write below /var and /run.
    `access_log` writes one line per request to standard output.
    """

    replicas: tuple[BalancedReplica, ...]
    address: str = "0.0.0.0"  # noqa: S104 - a load balancer serves the network
    http_port: int = 8000
    grpc_port: int = 8001
    health: HealthCheck = field(default_factory=HealthCheck)
    ejection: Ejection = field(default_factory=Ejection)
    affinity: Affinity = field(default_factory=Affinity)
    timeouts: Timeouts = field(default_factory=Timeouts)
    retries: int = 2
    max_body_bytes: int = 0
    max_header_bytes: int = 16384
    tls: ListenerTls | None = None
    admin_socket: str = ""
    metrics_port: int = 0
    run_folder: str = ""
    access_log: bool = True


def haproxy_configuration(balancer: LoadBalancer) -> str:
    """Return haproxy.cfg, for HAProxy 2.4 and later."""
    return _render("haproxy.cfg", balancer)


def nginx_configuration(balancer: LoadBalancer) -> str:
    """Return nginx.conf, for nginx 1.18 and later without modules of NGINX Plus."""
    return _render("nginx.conf", balancer)


def envoy_configuration(balancer: LoadBalancer) -> str:
    """Return envoy.yaml, a static bootstrap configuration for Envoy 1.25 and later."""
    return _render("envoy.yaml", balancer)


def traefik_configuration(balancer: LoadBalancer) -> str:
    """Return the file of routers and services for the file provider of Traefik 3."""
    return _render("traefik.yaml", balancer)


def _render(name: str, balancer: LoadBalancer) -> str:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
        autoescape=False,  # noqa: S701 - no HTML
    )
    return environment.get_template(f"{name}.jinja").render(balancer=balancer, variable=_nginx_variable)


def _nginx_variable(header: str) -> str:
    return "$http_" + header.lower().replace("-", "_")
