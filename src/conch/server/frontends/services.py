"""The services of a server, one for each port: their listeners, the frontends that answer there, and their metrics."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from conch.domain.exposition import Family, Labels, Point
from conch.protocols.connections.tls import ReloadedTls, TlsFiles
from conch.protocols.http.message import HttpLimits
from conch.protocols.http.metrics_page import MetricsPage
from conch.protocols.http.router import Router
from conch.protocols.http.server import HttpServer
from conch.server.frontends.cloud.sagemaker import SageMakerHttp
from conch.server.frontends.cloud.vertex_ai import VertexAiHttp
from conch.server.frontends.endpoints import HTTP_PORT, METRICS_PORT, OLLAMA_DELETE, OPENAI_PORT, Handlers
from conch.server.frontends.grpc.server import GrpcFrontend
from conch.server.frontends.parts import Parts
from conch.server.observability.metrics.reading import Reading, read
from conch.server.options.server_options import ServerOptions


class Service(NamedTuple):
    """A listener, with the prefix of its flags, its name in the log, and the configured address."""

    flags: str
    name: str
    address: str
    port: int
    listener: HttpServer | GrpcFrontend


def services(parts: Parts) -> Iterator[Service]:
    """Yield the services. Each must be started before the next is requested."""
    options = parts.options
    metrics = None
    if options.allow_metrics and parts.metrics is not None:
        metrics = MetricsPage(parts.metrics.pieces, parts.metrics.openmetrics_pieces)
    handlers = Handlers(parts, metrics)
    if options.allow_http:
        address, port = options.http_address, options.http_port
        router = handlers.router(HTTP_PORT)
        listener = _listener(parts, router, address, port, reuse_port=options.reuse_http_port, tls=_http_tls(options))
        yield Service("http", "HTTPService", address, port, listener)
    if options.openai_port >= 0:
        address, port = options.openai_address or options.http_address, options.openai_port
        listener = _listener(parts, handlers.router(OPENAI_PORT), address, port, tls=_http_tls(options))
        yield Service("openai", "OpenAI Service", address, port, listener)
    if options.allow_grpc:
        yield Service("grpc", "GRPCInferenceService", options.grpc_address, options.grpc_port, GrpcFrontend(parts))
    for flags, name, platform, port in _platforms(handlers):
        address = options.http_address
        yield Service(flags, name, address, port, _listener(parts, platform, address, port))
    if metrics is not None:
        address, port = options.metrics_address, options.metrics_port
        tls = _tls(options) if options.metrics_use_ssl else None
        listener = _listener(parts, handlers.router(METRICS_PORT), address, port, tls=tls)
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


def _listener(
    parts: Parts,
    handler: Router | SageMakerHttp | VertexAiHttp,
    address: str,
    port: int,
    *,
    reuse_port: bool = False,
    tls: ReloadedTls | None = None,
) -> HttpServer:
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


def _http_tls(options: ServerOptions) -> ReloadedTls | None:
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
