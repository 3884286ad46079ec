"""The listeners of the server: one service for each port that the options enable."""

from collections.abc import Iterator
from typing import NamedTuple

from conch.base.logs import LogSettings
from conch.protocols.access.api_keys import ApiKeys
from conch.protocols.access.authorization import Access
from conch.protocols.access.restrictions import http_restrictions, secret_headers
from conch.protocols.connections.body_budget import BodyBudget
from conch.protocols.http.message import HttpLimits
from conch.protocols.http.metrics_page import MetricsHttp
from conch.protocols.http.server import HttpServer
from conch.server.core.inference import Inference
from conch.server.core.loading.model_manager import ModelManager
from conch.server.core.shared_memory.regions import SharedMemory
from conch.server.frontends.grpc.server import GrpcFrontend
from conch.server.frontends.offload.pool import OffloadPool
from conch.server.frontends.openai.chat_prompt import ChatPrompts
from conch.server.frontends.openai.routes import OpenAiHttp
from conch.server.frontends.openai.server_routes import OpenAiServerRoutes
from conch.server.frontends.router import HttpRouter
from conch.server.frontends.tenants import Tenants
from conch.server.frontends.v2_http.routes import V2Http
from conch.server.limits.manager import LimitManager
from conch.server.observability.metrics.families import Metrics
from conch.server.observability.tracing.observer import Observer
from conch.server.options.server_options import ServerOptions


class Service(NamedTuple):
    """A listener, with the prefix of its flags, its name in the log, and the configured address."""

    flags: str
    name: str
    address: str
    port: int
    listener: HttpServer | GrpcFrontend


class Parts(NamedTuple):
    """Parts of the server that services need.

    `codecs` are worker processes that read and write large messages, `prompts` those that render chat templates;
    `metrics` are those of the server.
    """

    options: ServerOptions
    inference: Inference
    control: ModelManager
    shared_memory: SharedMemory | None
    observer: Observer
    log: LogSettings
    budget: BodyBudget
    codecs: OffloadPool
    prompts: ChatPrompts
    metrics: Metrics
    keys: ApiKeys
    limits: LimitManager


def services(parts: Parts) -> Iterator[Service]:
    """Yield the services. Each must be started before the next is requested."""
    options = parts.options
    access = Access(http_restrictions(options.http_restricted_api), parts.keys)
    limits = HttpLimits(body_bytes=options.http_max_input_size)
    metrics = None
    if options.allow_metrics:
        metrics = MetricsHttp(parts.metrics.pieces, Access(keys=parts.keys), parts.metrics.openmetrics_pieces)
    tenants = _tenants(parts)
    openai = OpenAiHttp(
        parts.inference,
        parts.control,
        lora_separator=options.lora_separator,
        access=access,
        observer=parts.observer,
        pool=parts.codecs,
        prompts=parts.prompts,
        tenants=tenants,
        max_input_bytes=options.http_max_input_size,
    )
    if options.allow_http:
        yield _http(parts, access, limits, openai, tenants)
    if options.openai_port >= 0:
        address, port = options.openai_address or options.http_address, options.openai_port
        handler = OpenAiServerRoutes(parts.inference, openai, metrics)
        listener = HttpServer(
            handler,
            address,
            port,
            limits=limits,
            body_limit=handler.body_limit,
            refusal=handler.refusal,
            budget=parts.budget,
        )
        yield Service("openai", "OpenAI Service", address, port, listener)
    if options.allow_grpc:
        yield _grpc(parts, tenants)
    if metrics is not None:
        address, port = options.metrics_address, options.metrics_port
        listener = HttpServer(metrics, address, port, refusal=metrics.refusal, budget=parts.budget)
        yield Service("metrics", "Metrics Service", address, port, listener)


def _tenants(parts: Parts) -> Tenants:
    options = parts.options
    return Tenants(
        options.limits_tenant_header,
        parts.keys,
        secret_headers(options.http_restricted_api, options.grpc_restricted_protocol),
    )


def _http(parts: Parts, access: Access, limits: HttpLimits, openai: OpenAiHttp, tenants: Tenants) -> Service:
    options = parts.options
    v2 = V2Http(
        parts.inference,
        parts.control,
        server_name=options.id,
        max_input_bytes=options.http_max_input_size,
        header_forward_pattern=options.http_header_forward_pattern,
        secret_headers=secret_headers(options.http_restricted_api, options.grpc_restricted_protocol),
        access=access,
        shared_memory=parts.shared_memory,
        observer=parts.observer,
        log=parts.log,
        budget=parts.budget,
        pool=parts.codecs,
        tenants=tenants,
        limits=parts.limits,
        limits_remote=options.limits_admin_remote,
        health_documents=bool(options.model_dir),
    )
    router = HttpRouter(v2, OpenAiServerRoutes(parts.inference, openai, None))
    listener = HttpServer(
        router,
        options.http_address,
        options.http_port,
        limits=limits,
        body_limit=router.body_limit,
        refusal=router.refusal,
        budget=parts.budget,
        reuse_port=options.reuse_http_port,
    )
    return Service("http", "HTTPService", options.http_address, options.http_port, listener)


def _grpc(parts: Parts, tenants: Tenants) -> Service:
    options = parts.options
    listener = GrpcFrontend(
        parts.inference,
        parts.control,
        options,
        parts.shared_memory,
        parts.observer,
        parts.log,
        parts.budget,
        parts.codecs,
        parts.keys,
        tenants,
    )
    return Service("grpc", "GRPCInferenceService", options.grpc_address, options.grpc_port, listener)
