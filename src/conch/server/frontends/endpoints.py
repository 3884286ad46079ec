"""All endpoints of the server, declared once: the routers are built of this table, so that no other exists.

An endpoint's category decides the scope of API keys that it needs (`protocols/access/authorization.py`) and the
restricted group that it belongs to.
"""

import time
from collections.abc import Callable
from enum import Enum
from functools import cached_property, partial
from typing import NamedTuple

import conch
from conch.base.command_line.flag_values import words_of
from conch.protocols.access.authorization import MODEL_HEALTH
from conch.protocols.http.cors import Cors
from conch.protocols.http.errors import JSON, V2, ErrorForm
from conch.protocols.http.long_replies import ReplyTasks, send_in_slices
from conch.protocols.http.message import HttpRequest
from conch.protocols.http.metrics_page import MetricsPage
from conch.protocols.http.reply import HttpReply
from conch.protocols.http.router import Route, Router, UnknownPaths
from conch.protocols.openai.large import MAX_REST_BYTES
from conch.protocols.v2_json.large import MAX_INLINE_BYTES
from conch.protocols.v2_proto.reflection import SERVICES
from conch.server.frontends import openapi
from conch.server.frontends.openai.adapters import AdaptersApi
from conch.server.frontends.openai.batches.endpoints import ENDPOINTS as OF_BATCHES
from conch.server.frontends.openai.batches.endpoints import BatchApi
from conch.server.frontends.openai.error_form import OPENAI
from conch.server.frontends.openai.generations import CHAT, COMPLETION, Generations
from conch.server.frontends.openai.messages import COUNTS, MESSAGES
from conch.server.frontends.openai.models import OpenAiModels
from conch.server.frontends.openai.ollama import OllamaApi
from conch.server.frontends.openai.responses import ResponsesApi
from conch.server.frontends.openai.texts import embeddings_endpoint, text_endpoint, texts_of
from conch.server.frontends.openai.tokens import TokensEndpoint
from conch.server.frontends.parts import Parts
from conch.server.frontends.v2_grpc.service import HEALTH_SERVICE, INFERENCE_SERVICE
from conch.server.frontends.v2_http.generate import GenerateEndpoints
from conch.server.frontends.v2_http.infer import HttpInferEndpoint, ReplyForm
from conch.server.frontends.v2_http.management import (
    DebugEndpoints,
    LimitsEndpoints,
    RepositoryEndpoints,
    SettingsEndpoints,
    SharedMemoryEndpoints,
)
from conch.server.frontends.v2_http.server_endpoints import ServerEndpoints
from conch.server.options.server_options import ServerOptions

# Ports, by the prefixes of their flags.
HTTP_PORT, OPENAI_PORT, METRICS_PORT = "http", "openai", "metrics"
HTTP = (HTTP_PORT,)
API = (HTTP_PORT, OPENAI_PORT)
_OPENAI_ONLY = (OPENAI_PORT,)
_SCRAPED = (OPENAI_PORT, METRICS_PORT)
_METRICS_ONLY = (METRICS_PORT,)
# Clients written for KServe's runtime for language models find the OpenAI API below this on the HTTP port.
_KSERVE, _V1 = "/openai", "/v1/"
OLLAMA_DELETE = "/api/delete"  # whose clients name the model in a body
_FALLBACKS = {
    HTTP_PORT: (
        UnknownPaths(_V1, OPENAI, "metadata"),
        UnknownPaths(_KSERVE + _V1, OPENAI, "metadata"),
        UnknownPaths("", V2, ""),
    ),
    OPENAI_PORT: (UnknownPaths("", OPENAI, "metadata"),),
    METRICS_PORT: (UnknownPaths("", V2, "metrics"),),
}


# On SageMaker's port, except /ping: methods, path, category, summary.
_SAGEMAKER = (
    ("POST", "/invocations", "inference", "SageMaker: infer."),
    ("GET POST", "/models", "model-repository", "SageMaker: list models, or load one."),
    ("GET DELETE", "/models/{model}", "model-repository", "SageMaker: show or unload a model."),
    ("POST", "/models/{model}/invoke", "inference", "SageMaker: infer with a loaded model."),
)


class Body(Enum):
    """The maximum size of a body: of small JSON, of texts to tokenize, of `--http-max-input-size`, or with tensors."""

    SMALL = MAX_INLINE_BYTES
    TEXTS = MAX_REST_BYTES
    JSON = "--http-max-input-size"
    TENSORS = "binary tensors"


class OpenedBy(NamedTuple):
    """A flag that opens an endpoint to clients on other machines, "" if only keys do; whether the options have it."""

    flag: str
    opened: Callable[[ServerOptions], bool]


_BY_KEYS_ONLY = OpenedBy("", lambda _: False)
_DOCS_REMOTE = OpenedBy("--docs-remote", lambda options: options.docs_remote)
_DEBUG_REMOTE = OpenedBy("--debug-remote", lambda options: options.debug_remote)
_LIMITS_REMOTE = OpenedBy("--limits-admin-remote", lambda options: options.limits_admin_remote)


class Handlers:
    """What answers: each handler is made once, for all ports.

    `metrics` is None where the server has no such page; `form` is that of inference replies on other ports.
    """

    def __init__(self, parts: Parts, metrics: MetricsPage | None = None, form: ReplyForm | None = None) -> None:
        tasks = ReplyTasks()
        self.parts = parts
        self.metrics = metrics
        self.server = ServerEndpoints(parts, tasks)
        self.infer = HttpInferEndpoint(parts, form)
        self.generate = GenerateEndpoints(parts)
        self.settings = SettingsEndpoints(parts)
        self.shared_memory = SharedMemoryEndpoints(parts.shared_memory)
        self.repository = RepositoryEndpoints(parts, tasks)
        self.limits = LimitsEndpoints(parts, tasks)
        self.debug = DebugEndpoints(parts, tasks)
        self.models = OpenAiModels(parts, int(time.time()))
        self.tokens = TokensEndpoint(parts, self.models)
        self.generations = Generations(parts, self.models)
        self.adapters = AdaptersApi(parts, self.models)
        self.batches = BatchApi(parts)
        self.ollama = OllamaApi(parts, self.models, self.generations) if parts.options.ollama_api else None
        self.responses = ResponsesApi(parts, self.generations)

    def router(self, port: str) -> Router:
        """Return the handler of a port."""
        routes = [route for endpoint, route in self._routes if port in endpoint.ports]
        alias = (_KSERVE, _V1) if port == HTTP_PORT else None
        cors = _cors(self.parts.options) if port != METRICS_PORT else None
        access, unread = self.parts.http_access, self.parts.observer.unread_http
        return Router(routes, _FALLBACKS[port], access, unread, alias, cors, self.parts.explain)

    def answer(self, endpoint: "ApiEndpoint") -> Callable[..., None] | None:
        """Return what answers the requests of an endpoint; None where it is not served."""
        return endpoint.handler(self)

    def describe(self, port: str, _request: HttpRequest, reply: HttpReply) -> None:
        """Answer with the OpenAPI document of a port."""
        operations = [
            openapi.Operation(
                endpoint.methods,
                endpoint.path,
                endpoint.category,
                endpoint.summary,
                self.parts.http_access.scope_needed(endpoint.category, openai=endpoint.form.openai) or "",
                plain_errors=endpoint.form is V2,
            )
            for endpoint, _ in self._routes
            if port in endpoint.ports
        ]
        if port == HTTP_PORT:
            known = {operation.path for operation in operations}
            operations += [operation for operation in self._platform_operations() if operation.path not in known]
        newest = {model.config.name: model.config for model in self.parts.inference.models()}
        title = f"{self.parts.options.id} ({port})"
        send_in_slices(reply, JSON, openapi.document(title, conch.__version__, operations, newest.values()))

    def _platform_operations(self) -> list[openapi.Operation]:
        """Return the endpoints of cloud platforms, whose ports have no document."""
        options = self.parts.options
        rows: list[tuple[str, str, str, str, int]] = []
        if options.allow_sagemaker and options.sagemaker_port:
            rows += [(*row, options.sagemaker_port) for row in _SAGEMAKER]
        if options.allow_vertex_ai and options.vertex_ai_port:
            routes, port = dict(options.platform_variables), options.vertex_ai_port
            rows += [
                ("POST", routes["AIP_PREDICT_ROUTE"], "inference", "Vertex AI: infer.", port),
                ("GET", routes["AIP_HEALTH_ROUTE"], "health", "Vertex AI: whether the server is ready.", port),
            ]
        scope_of = self.parts.http_access.scope_needed
        return [
            openapi.Operation(methods, path, category, summary, scope_of(category) or "", port=port)
            for methods, path, category, summary, port in rows
        ]

    def show_docs(self, _request: HttpRequest, reply: HttpReply) -> None:
        """Answer with the page that lists endpoints and sends requests to them."""
        page, headers = self._docs_page
        reply.send(200, headers, page)

    @cached_property
    def _docs_page(self) -> tuple[bytes, bytes]:
        return openapi.docs_page()

    @cached_property
    def _routes(self) -> "list[tuple[ApiEndpoint, Route]]":
        routes = [
            (endpoint, self._bound(endpoint, answer))
            for endpoint in ENDPOINTS
            if (answer := self.answer(endpoint)) is not None
        ]
        if self.parts.batches is not None:
            self.parts.batches.routes = {route.path: route for _, route in routes if route.path in OF_BATCHES}
        return routes

    def _bound(self, endpoint: "ApiEndpoint", answer: Callable[..., None]) -> Route:
        options = self.parts.options
        limit: int | Callable[..., int]
        if endpoint.body is Body.TENSORS:
            limit = self.infer.body_limit
        else:
            limit = options.http_max_input_size if endpoint.body is Body.JSON else endpoint.body.value
        local: str | None = None
        if endpoint.local is not None and not self.parts.http_access.protects(endpoint.category):
            local = None if endpoint.local.opened(options) else endpoint.local.flag
        methods = tuple(endpoint.methods.encode().split())
        return Route(methods, endpoint.path, endpoint.category, endpoint.form, answer, limit, local)


def _cors(options: ServerOptions) -> Cors | None:
    origins, methods, headers = map(
        words_of, (options.allowed_origins, options.allowed_methods, options.allowed_headers)
    )
    return Cors(origins, methods, headers, options.allow_credentials) if origins else None


class ApiEndpoint(NamedTuple):
    """One endpoint.

    `methods` are separated by spaces; in `path`, `{name}` is one segment and brackets enclose an optional part.
    `handler` finds in `Handlers` what is called with request, reply and the path's name; None where it is not served.
    `local` opens it to clients on other machines where no key or restriction protects it; None for all.
    """

    methods: str
    path: str
    category: str
    summary: str
    handler: Callable[[Handlers], Callable[..., None] | None]
    body: Body = Body.SMALL
    ports: tuple[str, ...] = HTTP
    form: ErrorForm = V2
    local: OpenedBy | None = None


_api = partial(ApiEndpoint, ports=API, form=OPENAI)
_OLLAMA = V2._replace(openai=True)
_MODEL = "/v2/models/{model}[/versions/{version}]"
INFER_PATH = f"{_MODEL}/infer"
_REPOSITORY = "/v2/repository"
_RESPONSE = "/v1/responses/{response}"


def _description(port: str, on: Handlers) -> Callable[..., None]:
    return partial(on.describe, port)


def _region_handler(kind: str, action: str, on: Handlers) -> Callable[..., None]:
    return on.shared_memory.endpoint(kind, action)


def _shared_memory(kind: str) -> tuple[ApiEndpoint, ...]:
    path, category = f"/v2/{kind}sharedmemory", "shared-memory"
    find = partial(partial, _region_handler, f"{kind}sharedmemory")
    region = path + "[/region/{region}]"
    return (
        ApiEndpoint("GET", f"{region}/status", category, f"Regions of {kind} shared memory.", find("status")),
        ApiEndpoint("POST", f"{region}/register", category, f"Register a region of {kind} memory.", find("register")),
        ApiEndpoint("POST", f"{region}/unregister", category, f"Unregister {kind} regions.", find("unregister")),
    )


def _ollama(
    methods: str,
    path: str,
    category: str,
    summary: str,
    handler: Callable[[OllamaApi], Callable[..., None]],
    body: Body = Body.SMALL,
) -> ApiEndpoint:
    """Declare an endpoint of Ollama's API, which is for clients on this machine unless keys protect it."""
    return ApiEndpoint(
        methods,
        path,
        category,
        f"Ollama: {summary}",
        lambda on: None if on.ollama is None else handler(on.ollama),
        body,
        API,
        _OLLAMA,
        _BY_KEYS_ONLY,
    )


# Path, kind of call in protocols/openai/text_calls.py, summary.
_TEXTS = (
    ("/v1/rerank", "rerank", "Rank documents by a query."),
    ("/v2/rerank", "rerank", "Rank documents by a query."),
    ("/rerank", "rerank", "Rank documents by a query."),
    ("/v1/score", "score", "Score pairs of texts."),
    ("/score", "score", "Score pairs of texts."),
    ("/v1/classify", "classify", "Classify texts."),
    ("/classify", "classify", "Classify texts."),
    ("/pooling", "pooling", "What a model gives for texts: vectors or probabilities."),
    ("/v1/embed", "cohere_embed_v1", "Embed texts, as version 1 of Cohere's API."),
    ("/v2/embed", "cohere_embed", "Embed texts, as Cohere's API."),
)


def _of_texts(kind: str, on: Handlers) -> Callable[..., None]:
    return text_endpoint(on.parts, texts_of(kind))


ENDPOINTS: tuple[ApiEndpoint, ...] = (
    # KServe v2 and Triton's extensions.
    ApiEndpoint("GET", "/v2/health/live", "health", "Whether the server is live.", lambda on: on.server.live),
    ApiEndpoint("GET", "/v2/health/ready", "health", "Whether the server is ready.", lambda on: on.server.ready),
    ApiEndpoint("GET", "/v2", "metadata", "Server metadata.", lambda on: on.server.server_metadata),
    ApiEndpoint("GET", "/v2/models/stats", "statistics", "Statistics of models.", lambda on: on.server.all_statistics),
    ApiEndpoint("GET", _MODEL, "metadata", "Inputs and outputs of a model.", lambda on: on.server.model_metadata),
    ApiEndpoint("GET", f"{_MODEL}/ready", MODEL_HEALTH, "Whether a model is ready.", lambda on: on.server.model_ready),
    ApiEndpoint(
        "GET", f"{_MODEL}/config", "model-config", "Configuration of a model.", lambda on: on.server.model_config
    ),
    ApiEndpoint(
        "GET", f"{_MODEL}/stats", "statistics", "Statistics of a model.", lambda on: on.server.model_statistics
    ),
    ApiEndpoint("POST", INFER_PATH, "inference", "Infer.", lambda on: on.infer, Body.TENSORS),
    ApiEndpoint(
        "POST", f"{_MODEL}/generate", "inference", "Run a model once.", lambda on: on.generate.one, Body.TENSORS
    ),
    ApiEndpoint(
        "POST",
        f"{_MODEL}/generate_stream",
        "inference",
        "Run a model; each response is an event.",
        lambda on: on.generate.stream,
        Body.TENSORS,
    ),
    *_shared_memory("system"),
    *_shared_memory("cuda"),
    ApiEndpoint(
        "POST",
        f"{_REPOSITORY}[/{{repository}}]/index",
        "model-repository",
        "Models of the repository.",
        lambda on: on.repository.index,
    ),
    ApiEndpoint(
        "POST",
        f"{_REPOSITORY}/models/{{model}}/load",
        "model-repository",
        "Load or reload a model.",
        lambda on: on.repository.load,
        Body.TENSORS,
    ),
    ApiEndpoint(
        "POST",
        f"{_REPOSITORY}/models/{{model}}/unload",
        "model-repository",
        "Unload a model.",
        lambda on: on.repository.unload,
    ),
    *(
        ApiEndpoint(
            "POST",
            f"{_REPOSITORY}/{{repository}}/models/{{model}}/{action}",
            "model-repository",
            "Refused: repositories cannot be chosen.",
            lambda on: on.repository.refuse_repository,
        )
        for action in ("load", "unload")
    ),
    ApiEndpoint("GET POST", "/v2/trace/setting", "trace", "Trace settings.", lambda on: on.settings.trace),
    ApiEndpoint(
        "GET POST",
        "/v2/models/{model}/trace/setting",
        "trace",
        "Trace settings of a model.",
        lambda on: on.settings.model_trace,
    ),
    ApiEndpoint("GET POST", "/v2/logging", "logging", "Log settings.", lambda on: on.settings.logging),
    ApiEndpoint(
        "GET PUT DELETE",
        "/v2/limits",
        "limits",
        "Limits of requests and tokens per second.",
        lambda on: on.limits.answer,
        local=_LIMITS_REMOTE,
    ),
    ApiEndpoint(
        "POST",
        "/v2/limits/rollback",
        "limits",
        "Undo the last change of limits.",
        lambda on: on.limits.roll_back,
        local=_LIMITS_REMOTE,
    ),
    ApiEndpoint(
        "GET",
        "/v2/debug/events",
        "debug",
        "Event log of the last seconds, as a file.",
        lambda on: on.debug.events,
        local=_DEBUG_REMOTE,
    ),
    ApiEndpoint(
        "GET POST",
        "/v2/debug/incident",
        "debug",
        "Incident bundle of the last seconds; POST writes it to --incident-dir.",
        lambda on: on.debug.incident,
        local=_DEBUG_REMOTE,
    ),
    # The OpenAI API, and vLLM's paths.
    _api(
        "POST",
        "/v1/chat/completions",
        "inference",
        "Chat.",
        lambda on: on.generations.endpoint(CHAT),
        Body.JSON,
    ),
    _api("POST", "/v1/responses", "inference", "Respond.", lambda on: on.responses.create, Body.JSON),
    _api(
        "POST",
        "/v1/responses/input_tokens",
        "inference",
        "Count the tokens of a response's input.",
        lambda on: on.responses.count,
        Body.JSON,
    ),
    _api("GET", _RESPONSE, "inference", "A response that was kept.", lambda on: on.responses.show),
    _api("DELETE", _RESPONSE, "inference", "Remove a response.", lambda on: on.responses.delete),
    _api("GET", f"{_RESPONSE}/input_items", "inference", "Input of a response.", lambda on: on.responses.input_items),
    _api("POST", f"{_RESPONSE}/cancel", "inference", "End a running response.", lambda on: on.responses.cancel),
    _api(
        "POST",
        "/v1/completions",
        "inference",
        "Complete prompts.",
        lambda on: on.generations.endpoint(COMPLETION),
        Body.JSON,
    ),
    _api(
        "POST",
        "/v1/messages",
        "inference",
        "Chat, as Anthropic's Messages API.",
        lambda on: on.generations.endpoint(MESSAGES),
        Body.JSON,
    ),
    _api(
        "POST",
        "/v1/messages/count_tokens",
        "inference",
        "Count the tokens of a chat.",
        lambda on: on.generations.endpoint(COUNTS),
        Body.JSON,
    ),
    _api("POST", "/v1/embeddings", "inference", "Embed texts.", lambda on: embeddings_endpoint(on.parts), Body.JSON),
    *(_api("POST", path, "inference", summary, partial(_of_texts, kind), Body.JSON) for path, kind, summary in _TEXTS),
    _api("POST", "/v1/files", "inference", "Upload the requests of a batch.", lambda on: on.batches.upload, Body.JSON),
    _api("GET", "/v1/files", "inference", "Files of the tenant.", lambda on: on.batches.files),
    _api("GET DELETE", "/v1/files/{file}", "inference", "Show or delete a file.", lambda on: on.batches.file),
    _api("GET", "/v1/files/{file}/content", "inference", "Content of a file.", lambda on: on.batches.content),
    _api("POST", "/v1/batches", "inference", "Run requests while the server is idle.", lambda on: on.batches.create),
    _api("GET", "/v1/batches", "inference", "Batches of the tenant.", lambda on: on.batches.batches),
    _api("GET", "/v1/batches/{batch}", "inference", "Show a batch.", lambda on: on.batches.batch),
    _api("POST", "/v1/batches/{batch}/cancel", "inference", "Cancel a batch.", lambda on: on.batches.cancel),
    _api("POST", "/tokenize", "inference", "Tokenize a text or chat.", lambda on: on.tokens.tokenize, Body.TEXTS),
    _api("POST", "/detokenize", "inference", "Text of tokens.", lambda on: on.tokens.detokenize, Body.TEXTS),
    _api("GET", "/v1/models", "metadata", "Models of the API.", lambda on: on.models.list_all),
    _api("GET", "/v1/models/{model}", "metadata", "One model.", lambda on: on.models.show),
    _api("POST", "/v1/models/{model}/load", "model-repository", "Load a model.", lambda on: on.models.load),
    _api("POST", "/v1/models/{model}/unload", "model-repository", "Unload a model.", lambda on: on.models.unload),
    _api("POST", "/v1/load_lora_adapter", "model-repository", "Load a LoRA adapter.", lambda on: on.adapters.load),
    _api("POST", "/v1/unload_lora_adapter", "model-repository", "Unload an adapter.", lambda on: on.adapters.unload),
    _api("GET", "/version", "health", "Version of the server.", lambda on: on.server.version),
    _api("GET", "/health", "health", "Whether the server is ready.", lambda on: on.server.ready_or_503),
    _api("GET", "/ping", "health", "Whether the server is ready.", lambda on: on.server.ready_or_503),
    ApiEndpoint(
        "GET",
        "/health/ready",
        "health",
        "Whether the server is ready.",
        lambda on: on.server.ready_or_400,
        ports=_OPENAI_ONLY,
        form=OPENAI,
    ),
    ApiEndpoint(
        "GET",
        "/health/live",
        "health",
        "Whether the server is live.",
        lambda on: on.server.alive,
        ports=_OPENAI_ONLY,
        form=OPENAI,
    ),
    # Ollama's API.
    _ollama("GET HEAD", "/", "health", "whether the server runs.", lambda on: on.running),
    _ollama("GET HEAD", "/api/version", "health", "version of the API.", lambda on: on.version),
    _ollama("POST", "/api/chat", "inference", "chat.", lambda on: on.chat, Body.JSON),
    _ollama("POST", "/api/generate", "inference", "complete a prompt.", lambda on: on.generate, Body.JSON),
    _ollama("POST", "/api/embed", "inference", "embed texts.", lambda on: on.embed, Body.JSON),
    _ollama("POST", "/api/embeddings", "inference", "embed a text.", lambda on: on.embeddings, Body.JSON),
    _ollama("GET HEAD", "/api/tags", "metadata", "models.", lambda on: on.tags),
    _ollama("GET HEAD", "/api/ps", "metadata", "running models.", lambda on: on.ps),
    _ollama("POST", "/api/show", "metadata", "one model.", lambda on: on.show),
    _ollama("POST", "/api/pull", "metadata", "confirm a model; others are refused.", lambda on: on.pull),
    _ollama("POST", "/api/push", "model-repository", "refused: uploads.", lambda on: on.refuse),
    _ollama("POST", "/api/create", "model-repository", "refused: new models.", lambda on: on.refuse),
    _ollama("POST", "/api/copy", "model-repository", "refused: copies.", lambda on: on.refuse),
    _ollama("DELETE", OLLAMA_DELETE, "model-repository", "refused: deletions.", lambda on: on.refuse),
    _ollama("POST HEAD", "/api/blobs/{digest}", "model-repository", "refused: files.", lambda on: on.refuse),
    # What this table and the loaded models are, for programs and for people.
    *(
        ApiEndpoint(
            "GET",
            "/openapi.json",
            "metadata",
            "This document: OpenAPI 3.1.",
            partial(_description, port),
            ports=(port,),
        )
        for port in API
    ),
    ApiEndpoint(
        "GET",
        "/docs",
        "docs",
        "Page that lists the endpoints and sends requests.",
        lambda on: on.show_docs,
        ports=API,
        local=_DOCS_REMOTE,
    ),
    # Prometheus.
    ApiEndpoint(
        "GET HEAD",
        "/metrics",
        "metrics",
        "Metrics of the server.",
        lambda on: on.metrics.answer if on.metrics else None,
        ports=_SCRAPED,
    ),
    ApiEndpoint(
        "GET HEAD",
        "/metrics/",
        "metrics",
        "Metrics of the server.",
        lambda on: on.metrics.answer if on.metrics else None,
        ports=_METRICS_ONLY,
    ),
    ApiEndpoint(
        "GET HEAD",
        "/",
        "metrics",
        "Page that links to the metrics.",
        lambda on: on.metrics.index if on.metrics else None,
        ports=_METRICS_ONLY,
    ),
)

# Categories of the calls over gRPC, by path.
GRPC_CALLS: dict[str, str] = {
    f"/{HEALTH_SERVICE}/Check": "health",
    f"/{HEALTH_SERVICE}/Watch": "health",
    **{f"/{service}/ServerReflectionInfo": "metadata" for service in SERVICES},
    **{
        f"/{INFERENCE_SERVICE}/{name}": category
        for category, names in {
            "health": "ServerLive ServerReady",
            MODEL_HEALTH: "ModelReady",
            "metadata": "ServerMetadata ModelMetadata",
            "model-config": "ModelConfig",
            "statistics": "ModelStatistics",
            "inference": "ModelInfer ModelStreamInfer",
            "model-repository": "RepositoryIndex RepositoryModelLoad RepositoryModelUnload",
            "shared-memory": "SystemSharedMemoryStatus SystemSharedMemoryRegister SystemSharedMemoryUnregister "
            "CudaSharedMemoryStatus CudaSharedMemoryRegister CudaSharedMemoryUnregister",
            "trace": "TraceSetting",
            "logging": "LogSettings",
        }.items()
        for name in names.split()
    },
}
