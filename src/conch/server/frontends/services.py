"""The services of a server, one for each port: their listeners, the frontends that answer there, and their metrics."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from conch.domain.exposition import Family, Labels, Point
from conch.protocols.connections.tls import ReloadedTls, TlsFiles
from conch.protocols.http.message import HttpLimits
from conch.protocols.http.metrics_page import MetricsPage
from conch.protocols.http.router import Router
from conch.protocols.http.server import HttpServer
from conch.server.frontends.cloud import SageMakerHttp, VertexAiHttp
from conch.server.frontends.endpoints import HTTP_PORT, METRICS_PORT, OLLAMA_DELETE, OPENAI_PORT, Handlers
from conch.server.frontends.grpc.server import GrpcFrontend
from conch.server.frontends.parts import Parts
from conch.server.frontends.processes.supervisor import FrontendProcesses, RemoteListener
from conch.server.observability.metrics.reading import Reading, read
from conch.server.options.server_options import ServerOptions


class Service(NamedTuple):
    """A listener, with the prefix of its flags, its name in the log, and the configured address."""

    flags: str
    name: str
    address: str
    port: int
    listener: HttpServer | GrpcFrontend | RemoteListener


def services(parts: Parts, processes: FrontendProcesses | None = None) -> Iterator[Service]:
    """Yield the services. Each must be started before the next is requested.

    Clients of the HTTP, OpenAI and gRPC ports connect to `processes` if there are any.
    """
    options = parts.options
    metrics = None
    if options.allow_metrics and parts.metrics is not None:
        metrics = MetricsPage(parts.metrics.pieces, parts.metrics.openmetrics_pieces)
    handlers = Handlers(parts, metrics)

    def client_listener(
        flags: str, router: Router, address: str, port: int, shared: bool
    ) -> HttpServer | RemoteListener:
        if processes is not None:
            return processes.listener(flags, address, port, router, shared=shared)
        return http_listener(parts, router, address, port, reuse_port=shared, tls=http_tls(options))

    if options.allow_http:
        address, port = options.http_address, options.http_port
        router, shared = handlers.router(HTTP_PORT), options.reuse_http_port
        yield Service("http", "HTTPService", address, port, client_listener(HTTP_PORT, router, address, port, shared))
    if options.openai_port >= 0:
        address, port = options.openai_address or options.http_address, options.openai_port
        listener = client_listener(OPENAI_PORT, handlers.router(OPENAI_PORT), address, port, shared=False)
        yield Service("openai", "OpenAI Service", address, port, listener)
    if options.allow_grpc:
        address, port = options.grpc_address, options.grpc_port
        grpc: GrpcFrontend | RemoteListener
        if processes is None:
            grpc = GrpcFrontend(parts)
        else:
            grpc = processes.listener("grpc", address, port, shared=options.reuse_grpc_port)
        yield Service("grpc", "GRPCInferenceService", address, port, grpc)
    for flags, name, platform, port in _platforms(handlers):
        address = options.http_address
        yield Service(flags, name, address, port, http_listener(parts, platform, address, port))
    if metrics is not None:
        address, port = options.metrics_address, options.metrics_port
        tls = _tls(options) if options.metrics_use_ssl else None
        listener = http_listener(parts, handlers.router(METRICS_PORT), address, port, tls=tls)
        yield Service("metrics", "Metrics Service", address, port, listener)


def _platforms(handlers: Handlers) -> Iterator[tuple[str, str, SageMakerHttp | VertexAiHttp, int]]:
    """Yield prefix of the flags, name, handler and port of the endpoints of hosting platforms."""
    parts, options = handlers.parts, handlers.parts.options
    if options.allow_sagemaker:
        form = SageMakerHttp.form
        v2 = Handlers(parts, form=form).router(HTTP_PORT)
        yield "sagemaker", "Sagemaker HTTPService", SageMakerHttp(parts, v2), options.sagemaker_port
    if options.allow_vertex_ai:
        metrics = handlers.router(METRICS_PORT)
        vertex = VertexAiHttp(parts, handlers.router(HTTP_PORT), metrics)
        yield "vertex-ai", "Vertex AI HTTPService", vertex, options.vertex_ai_port


def http_listener(
    parts: Parts,
    handler: Router | SageMakerHttp | VertexAiHttp,
    address: str,
    port: int,
    *,
    reuse_port: bool = False,
    tls: ReloadedTls | None = None,
) -> HttpServer:
    """Return a listener for HTTP."""
    return HttpServer(
        handler,
        address,
        port,
        limits=HttpLimits(body_bytes=parts.options.http_max_input_size, delete_bodies=(OLLAMA_DELETE,)),
        body_limit=handler.body_limit,
        refusal=handler.refusal,
        budget=parts.budget,
        reuse_port=reuse_port,
        tls=tls,
    )


def http_tls(options: ServerOptions) -> ReloadedTls | None:
    """Return the TLS of a port for clients, None for plain text. Raises ConfigError for a file that is wrong."""
    return (
        _tls(options, options.http_root_cert if options.http_use_ssl_mutual else "") if options.http_use_ssl else None
    )


def _tls(options: ServerOptions, root: str = "") -> ReloadedTls:
    return ReloadedTls(TlsFiles("--http", options.http_server_cert, options.http_server_key, root), "http/1.1")


_READINGS: tuple[Reading[Service], ...] = (
    Reading("conch_connections", lambda service: service.listener.connections),
    Reading("conch_received_bytes_total", lambda service: service.listener.traffic.received_bytes),
    Reading("conch_sent_bytes_total", lambda service: service.listener.traffic.sent_bytes),
)


def listener_families(services: Iterable[Service]) -> Iterator[Family]:
    """Yield the families of connections, bytes and refused requests: by protocol, and the sum of what was refused."""
    listening = [(Labels({"protocol": service.flags}), service) for service in services]
    yield from read(_READINGS, listening)
    refused: Counter[str] = Counter()
    for _, service in listening:
        refused.update(service.listener.traffic.refused)
    yield Family.of(
        "conch_rejected_requests_total", [Point(count, {"reason": reason}) for reason, count in refused.items()]
    )


def frontend_families(processes: FrontendProcesses | None, services: Iterable[Service]) -> Iterator[Family]:
    """Yield the metrics of frontend processes; 0 is the server's process where it accepts clients itself."""
    if processes is None:
        rows = [("0", sum(service.listener.connections for service in services), time.process_time())]
    else:
        rows = [(str(frontend.index), frontend.connections(), frontend.cpu_s) for frontend in processes.running]
    for name, values in (
        ("conch_frontend_connections", {index: connections for index, connections, _ in rows}),
        ("conch_frontend_cpu_seconds_total", {index: cpu_s for index, _, cpu_s in rows}),
    ):
        yield Family.of(name, [Point(value, {"frontend": index}) for index, value in values.items()])
    yield Family.of("conch_frontend_restarts_total", [Point(0 if processes is None else processes.restarts, {})])
