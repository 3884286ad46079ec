"""The services of a server, one for each port: their listeners, the frontends that answer there, and their metrics."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

from conch.domain.exposition import Family, Labels, Point
from conch.protocols.access.authorization import Access
from conch.protocols.http.message import HttpLimits
from conch.protocols.http.metrics_page import MetricsHttp
from conch.protocols.http.server import HttpServer
from conch.server.frontends.cloud.sagemaker import SageMakerHttp
from conch.server.frontends.cloud.vertex_ai import VertexAiHttp
from conch.server.frontends.grpc.server import GrpcFrontend
from conch.server.frontends.openai.routes import OpenAiHttp
from conch.server.frontends.parts import Parts
from conch.server.frontends.router import HttpRouter, OpenAiServerRoutes
from conch.server.frontends.v2_http.routes import V2Http
from conch.server.observability.metrics.reading import Reading, read


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
        metrics = MetricsHttp(parts.metrics.pieces, Access(keys=parts.keys), parts.metrics.openmetrics_pieces)
    openai = OpenAiHttp(parts)
    if options.allow_http:
        router = HttpRouter(V2Http(parts), OpenAiServerRoutes(parts.inference, openai))
        address, port = options.http_address, options.http_port
        listener = _http_listener(parts, router, address, port, reuse_port=options.reuse_http_port)
        yield Service("http", "HTTPService", address, port, listener)
    if options.openai_port >= 0:
        address, port = options.openai_address or options.http_address, options.openai_port
        listener = _http_listener(parts, OpenAiServerRoutes(parts.inference, openai, metrics), address, port)
        yield Service("openai", "OpenAI Service", address, port, listener)
    if options.allow_grpc:
        yield Service("grpc", "GRPCInferenceService", options.grpc_address, options.grpc_port, GrpcFrontend(parts))
    for flags, name, platform, port in _platforms(parts, metrics):
        address = options.http_address
        yield Service(flags, name, address, port, _http_listener(parts, platform, address, port))
    if metrics is not None:
        address, port = options.metrics_address, options.metrics_port
        listener = HttpServer(metrics, address, port, refusal=metrics.refusal, budget=parts.budget)
        yield Service("metrics", "Metrics Service", address, port, listener)


def _platforms(parts: Parts, metrics: MetricsHttp | None) -> Iterator[tuple[str, str, "_HttpHandler", int]]:
    """Yield prefix of the flags, name, handler and port of the endpoints of hosting platforms."""
    options = parts.options
    if options.allow_sagemaker:
        yield "sagemaker", "Sagemaker HTTPService", SageMakerHttp(parts), options.sagemaker_port
    if options.allow_vertex_ai:
        yield "vertex-ai", "Vertex AI HTTPService", VertexAiHttp(parts, metrics), options.vertex_ai_port


_HttpHandler: TypeAlias = HttpRouter | OpenAiServerRoutes | SageMakerHttp | VertexAiHttp


def _http_listener(
    parts: Parts, handler: _HttpHandler, address: str, port: int, *, reuse_port: bool = False
) -> HttpServer:
    return HttpServer(
        handler,
        address,
        port,
        limits=HttpLimits(body_bytes=parts.options.http_max_input_size),
        body_limit=handler.body_limit,
        refusal=handler.refusal,
        budget=parts.budget,
        reuse_port=reuse_port,
    )


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
