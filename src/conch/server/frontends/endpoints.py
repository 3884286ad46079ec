"""All endpoints of the server: the table `endpoints.csv`, of which the routers are built, so that no other exists.

An endpoint's category decides the scope of API keys that it needs (`protocols/access/authorization.py`) and the
restricted group that it belongs to.
"""

import time
from collections.abc import Callable, Iterator
from enum import Enum
from functools import cached_property, partial
from typing import Any, NamedTuple

import conch
from conch.base.command_line.flag_values import words_of
from conch.base.files.tables import table_rows
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
from conch.server.frontends.openai.generations import CHAT, COMPLETION, Dialect, Generations
from conch.server.frontends.openai.messages import COUNTS, MESSAGES
from conch.server.frontends.openai.models import OpenAiModels
from conch.server.frontends.openai.ollama import OllamaApi
from conch.server.frontends.openai.responses import ResponsesApi
from conch.server.frontends.openai.texts import text_endpoint, texts_of
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
API = (HTTP_PORT, OPENAI_PORT)
# Clients written for KServe's runtime for language models find the OpenAI API below this on the HTTP port.
_KSERVE, _V1 = "/openai", "/v1/"
OLLAMA_DELETE = "/api/delete"  # whose clients name the model in a body
_FORMS = {"v2": V2, "openai": OPENAI, "ollama": V2._replace(openai=True)}
_DIALECTS: dict[str, Dialect[Any]] = {
    "chat": CHAT,
    "completion": COMPLETION,
    "message": MESSAGES,
    "message-tokens": COUNTS,
}
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
# Flags that open endpoints to clients on other machines.
_OPENED_BY: dict[str, Callable[[ServerOptions], bool]] = {
    "--docs-remote": lambda options: options.docs_remote,
    "--debug-remote": lambda options: options.debug_remote,
    "--limits-admin-remote": lambda options: options.limits_admin_remote,
}


class Body(Enum):
    """The maximum size of a body: of small JSON, of texts to tokenize, of `--http-max-input-size`, or with tensors."""

    SMALL = MAX_INLINE_BYTES
    TEXTS = MAX_REST_BYTES
    JSON = "--http-max-input-size"
    TENSORS = "binary tensors"


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
        names, *arguments = endpoint.handler.split()
        handler: Any = self
        for name in names.split("."):
            handler = getattr(handler, name)
            if handler is None:
                return None
        answer: Callable[..., None] = handler(*arguments) if arguments else handler
        return answer

    def generation(self, kind: str) -> Callable[..., None]:
        """Return the handler of a path that generates text, or counts the tokens of its prompt."""
        return self.generations.endpoint(_DIALECTS[kind])

    def texts(self, kind: str) -> Callable[..., None]:
        """Return the handler of a kind of call in `protocols/openai/text_calls.py`, or of embeddings."""
        return text_endpoint(self.parts, texts_of(kind))

    def description(self, port: str) -> Callable[..., None]:
        """Return the handler of the OpenAPI document of a port."""
        return partial(self._describe, port)

    def _describe(self, port: str, _request: HttpRequest, reply: HttpReply) -> None:
        operations = [
            openapi.Operation(
                endpoint.methods,
                endpoint.path,
                endpoint.category,
                endpoint.summary,
                self.parts.http_access.scope_needed(endpoint.category, openai=endpoint.form.openai) or "",
                plain_errors=endpoint.form is V2,
                fields=endpoint.fields,
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
            local = None if endpoint.local and _OPENED_BY[endpoint.local](options) else endpoint.local
        methods = tuple(endpoint.methods.encode().split())
        return Route(methods, endpoint.path, endpoint.category, endpoint.form, answer, limit, local)


def _cors(options: ServerOptions) -> Cors | None:
    origins, methods, headers = map(
        words_of, (options.allowed_origins, options.allowed_methods, options.allowed_headers)
    )
    return Cors(origins, methods, headers, options.allow_credentials) if origins else None


class ApiEndpoint(NamedTuple):
    """One endpoint: a row of `endpoints.csv`.

    `methods` are separated by spaces; in `path`, `{name}` is one segment and brackets enclose an optional part.
    `handler` names what of `Handlers` is called with request, reply and the path's name; words after the name are
    arguments of a method that returns it. `local` is the flag that opens the endpoint to clients on other machines
    where no key or restriction protects it, "" if only keys do; None for all clients. `fields` names the request of
    `protocols/openai/field_rules.csv` that a body is, "" for others.
    """

    methods: str
    path: str
    category: str
    handler: str
    body: Body
    fields: str
    form: ErrorForm
    ports: tuple[str, ...]
    local: str | None
    summary: str


def _read() -> Iterator[ApiEndpoint]:
    for row in table_rows(__file__, "endpoints.csv"):
        yield ApiEndpoint(
            row["methods"],
            row["path"],
            row["category"],
            row["handler"],
            Body[row["body"].upper()],
            row["fields"],
            _FORMS[row["form"]],
            tuple(row["ports"].split()),
            row["local"].removeprefix("keys") if row["local"] else None,
            row["summary"],
        )


ENDPOINTS: tuple[ApiEndpoint, ...] = tuple(_read())
INFER_PATH = "/v2/models/{model}[/versions/{version}]/infer"

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
