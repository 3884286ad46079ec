# Compiled by mypyc in wheels.
"""Routes of the KServe v2 protocol and of Triton's extensions of it over HTTP.

Paths are compared as sent, like Triton's: no unquoting, no trailing slash, case matters, the query is ignored. What
Triton offers at a path and this server does not is refused by name rather than not found.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from logging import getLogger
from typing import Final, NamedTuple

import conch
from conch.base.errors import ConchError, InvalidRequest, Unsupported
from conch.protocols.access.authorization import MODEL_HEALTH, Access
from conch.protocols.http.errors import (
    JSON,
    access_refusal,
    not_found,
    send_error,
    send_not_found,
    send_refusal,
    wrong_method,
)
from conch.protocols.http.long_replies import ReplyTasks, send_in_slices
from conch.protocols.http.message import HttpRefusal, HttpRequest, content_type
from conch.protocols.http.reply import HttpReply
from conch.protocols.v2_json import documents
from conch.protocols.v2_json.large import MAX_INLINE_BYTES
from conch.server.core.inference import Inference
from conch.server.frontends.parts import Parts
from conch.server.frontends.v2_http.generate import GenerateEndpoints
from conch.server.frontends.v2_http.infer import HttpInferEndpoint, ReplyForm
from conch.server.frontends.v2_http.limits_endpoints import PATH as LIMITS
from conch.server.frontends.v2_http.limits_endpoints import ROLL_BACK, LimitsEndpoints
from conch.server.frontends.v2_http.management import RepositoryEndpoints, SettingsEndpoints, SharedMemoryEndpoints
from conch.server.observability.tracing.observer import Observer

_log: Final = getLogger(__name__)

_MAX_VERSION: Final = 2**63 - 1
_VERSION_DIGITS: Final = 19
_MAX_SHOWN_DIGITS: Final = 40
_TEXT: Final = content_type(b"text/plain")
# KServe's Python client parses these documents of its protocol. Triton sends no body.
_LIVE, _READY = b'{"live":true}', b'{"ready":true}'

_INFER = ("infer",)
_GET = (b"GET",)
_POST = (b"POST",)
_EITHER = (b"GET", b"POST")


class _Endpoint(NamedTuple):
    """An endpoint; `category` is its group in `--http-restricted-api`.

    `answer` is called with the request and the reply, for a model also with its name and version, which is None where
    the path has none.
    """

    methods: tuple[bytes, ...]
    category: str
    answer: Callable[..., None]
    large: bool = False  # whether bodies above `MAX_INLINE_BYTES` are accepted


class V2Http:
    """Handler of the HTTP port. Called with each request; answers now or later, with exactly one reply."""

    def __init__(self, parts: Parts, form: ReplyForm | None = None) -> None:
        """Create the endpoints. Raises ConfigError for invalid patterns and restrictions.

        `form` is that of inference replies on another port than the HTTP port.
        """
        options = parts.options
        self._inference: Inference = parts.inference
        self._observer: Observer = parts.observer
        self._tasks = ReplyTasks()
        self._settings = SettingsEndpoints(parts)
        self._infer = HttpInferEndpoint(parts, form)
        self._generate = GenerateEndpoints(parts)
        self._shared_memory = SharedMemoryEndpoints(parts.shared_memory)
        self._repository = RepositoryEndpoints(parts, self._tasks)
        self._limits = LimitsEndpoints(parts, self._tasks)
        self._access: Access | None = parts.http_access or None
        # Health is answered with a document, as KServe does, or without, as Triton does.
        self._live_body, self._ready_body = (_LIVE, _READY) if options.model_dir else (b"", b"")
        self._metadata = documents.server_metadata(
            options.id, conch.__version__, shared_memory=parts.shared_memory is not None
        )
        self._of_server = self._server_endpoints()
        self._of_models = self._model_endpoints()

    def body_limit(self, request: HttpRequest) -> int:
        """Return how large the body of this request may be, in bytes."""
        endpoint = self._endpoint(request.path)
        return self._infer.body_limit(request) if endpoint is None or endpoint.large else MAX_INLINE_BYTES

    def refusal(self, request: HttpRequest) -> HttpRefusal | None:
        """Return why a request is refused whatever its body is; None if that depends on the body."""
        endpoint = self._endpoint(request.path)
        return not_found() if endpoint is None else self._denied(endpoint, request)

    def served(self, path: str) -> tuple[str, tuple[bytes, ...]] | None:
        """Return the category and the methods of a path; None if there is nothing."""
        endpoint = self._endpoint(path)
        return None if endpoint is None else (endpoint.category, endpoint.methods)

    def _endpoint(self, path: str) -> _Endpoint | None:
        target = _split_model_path(path)
        if target is not None:
            return self._of_models.get(target[2])
        return self._of_server.get(path) or self._of_repository(path)

    def __call__(self, request: HttpRequest, reply: HttpReply) -> None:
        """Answer one request."""
        try:
            self._route(request, reply)
        except ConchError as error:
            send_error(reply, error)

    def _route(self, request: HttpRequest, reply: HttpReply) -> None:
        target = _split_model_path(request.path)
        if target is not None:
            name, version, action = target
            if action != _INFER:  # inference requests are in the request log
                _log.debug("HTTP request: %s %s", request.method.decode(), request.path)
            of_models = self._of_models.get(action)
            if of_models is None or (version and action == ("trace", "setting")):
                send_not_found(reply)
            elif self._admits(of_models, request, reply):
                of_models.answer(request, reply, name, _version(version))
            return
        _log.debug("HTTP request: %s %s", request.method.decode(), request.path)
        of_server = self._of_server.get(request.path) or self._of_repository(request.path)
        if of_server is None:
            send_not_found(reply)
        elif self._admits(of_server, request, reply):
            of_server.answer(request, reply)

    def _admits(self, endpoint: _Endpoint, request: HttpRequest, reply: HttpReply) -> bool:
        """Whether this client may call this endpoint with this method; otherwise send the refusal."""
        refusal = self._denied(endpoint, request)
        if refusal is not None:
            send_refusal(reply, refusal)
        return refusal is None

    def _denied(self, endpoint: _Endpoint, request: HttpRequest) -> HttpRefusal | None:
        """Return why this client may not call this endpoint with this method, None if it may."""
        if self._access is not None:
            refusal = access_refusal(self._access, endpoint.category, request)
            if refusal is not None:
                if endpoint.category == "inference":
                    self._observer.unread_http(request, refusal)
                return refusal
        if request.method not in endpoint.methods:
            return wrong_method()
        if len(request.body) > MAX_INLINE_BYTES and not endpoint.large:
            text = f"request body of {len(request.body)} bytes exceeds the maximum of {MAX_INLINE_BYTES} bytes here"
            return HttpRefusal(400, text)
        return None

    def _server_endpoints(self) -> dict[str, _Endpoint]:
        return {
            "/v2": _Endpoint(_GET, "metadata", self._server_metadata),
            "/v2/health/live": _Endpoint(_GET, "health", self._live),
            "/v2/health/ready": _Endpoint(_GET, "health", self._ready),
            "/v2/models/stats": _Endpoint(_GET, "statistics", self._all_statistics),
            "/v2/trace/setting": _Endpoint(_EITHER, "trace", self._settings.trace),
            LIMITS: _Endpoint((b"GET", b"PUT", b"DELETE"), "limits", self._limits.answer),
            ROLL_BACK: _Endpoint(_POST, "limits", self._limits.roll_back),
            "/v2/logging": _Endpoint(_EITHER, "logging", self._settings.logging),
        }

    def _model_endpoints(self) -> dict[tuple[str, ...], _Endpoint]:
        """Return the endpoints by the part of the path behind the model's name and version."""
        return {
            _INFER: _Endpoint(_POST, "inference", self._infer, large=True),
            ("ready",): _Endpoint(_GET, MODEL_HEALTH, self._model_ready),
            (): _Endpoint(_GET, "metadata", self._model_metadata),
            ("config",): _Endpoint(_GET, "model-config", self._model_config),
            ("stats",): _Endpoint(_GET, "statistics", self._model_statistics),
            ("generate",): _Endpoint(_POST, "inference", self._generate.one, large=True),
            ("generate_stream",): _Endpoint(_POST, "inference", self._generate.stream, large=True),
            ("trace", "setting"): _Endpoint(_EITHER, "trace", self._settings.model_trace),
        }

    def _of_repository(self, path: str) -> _Endpoint | None:
        """Return the endpoint of a path with names, below `/v2/repository` or shared memory; None if there is none."""
        match path.split("/"):
            case ["", "v2", "repository", "index"] | ["", "v2", "repository", _, "index"] if "//" not in path:
                return _Endpoint(_POST, "model-repository", self._repository.index)
            case ["", "v2", "repository", "models", name, "load"] if name:
                return _Endpoint(_POST, "model-repository", partial(self._repository.load, name=name), large=True)
            case ["", "v2", "repository", "models", name, "unload"] if name:
                return _Endpoint(_POST, "model-repository", partial(self._repository.unload, name=name))
            case ["", "v2", "repository", _, "models", name, "load" | "unload"] if "//" not in path:
                return _Endpoint(_POST, "model-repository", _unsupported("'repository_name' specification"))
            case ["", "v2", kind, action]:
                return self._of_shared_memory(kind, "", action)
            case ["", "v2", kind, "region", name, action] if name:
                return self._of_shared_memory(kind, name, action)
        return None

    def _of_shared_memory(self, kind: str, name: str, action: str) -> _Endpoint | None:
        answer = self._shared_memory.find(kind, name, action)
        return answer and _Endpoint(_GET if action == "status" else _POST, "shared-memory", answer)

    def _server_metadata(self, _request: HttpRequest, reply: HttpReply) -> None:
        reply.send(200, JSON, self._metadata)

    def _live(self, _request: HttpRequest, reply: HttpReply) -> None:
        _send_health(reply, self._inference.live(), self._live_body)

    def _ready(self, _request: HttpRequest, reply: HttpReply) -> None:
        _send_health(reply, self._inference.ready(), self._ready_body)

    def _all_statistics(self, _request: HttpRequest, reply: HttpReply) -> None:
        send_in_slices(reply, JSON, documents.statistics_pieces(self._inference.statistics()))

    def _model_ready(self, _request: HttpRequest, reply: HttpReply, name: str, version: int | None) -> None:
        self._tasks.run(reply, self._check_model_ready(reply, name, version))

    async def _check_model_ready(self, reply: HttpReply, name: str, version: int | None) -> None:
        if not await self._inference.model_ready(name, version):
            state = self._inference.unserved(name)
            raise InvalidRequest(f"Model version not ready: {state}" if state else "Model version not ready")
        reply.send(200, _TEXT)

    def _model_metadata(self, _request: HttpRequest, reply: HttpReply, name: str, version: int | None) -> None:
        model = self._inference.model(name, version)
        versions = self._inference.versions(name) if version is None else [version]
        reply.send(200, JSON, documents.model_metadata(model.config, versions))

    def _model_config(self, _request: HttpRequest, reply: HttpReply, name: str, version: int | None) -> None:
        reply.send(200, JSON, documents.model_config(self._inference.model(name, version).config))

    def _model_statistics(self, _request: HttpRequest, reply: HttpReply, name: str, version: int | None) -> None:
        reply.send(200, JSON, documents.model_statistics(self._inference.statistics(name, version)))


def _send_health(reply: HttpReply, healthy: bool, document: bytes) -> None:
    if healthy:
        reply.send(200, JSON if document else _TEXT, document)
    else:
        reply.send(400, _TEXT)


@lru_cache(maxsize=256)
def _split_model_path(path: str) -> tuple[str, str, tuple[str, ...]] | None:
    """Split `/v2/models/<name>[/versions/<digits>][/…]` into name, version and rest; None if it is no such path."""
    parts = path.split("/")
    if len(parts) < 4 or parts[2] != "models" or parts[1] != "v2" or parts[0] or not parts[3]:
        return None
    name = parts[3]
    if len(parts) == 4 and name == "stats":
        return None  # the statistics of all models; a model of that name loses its metadata, as with Triton
    if len(parts) >= 6 and parts[4] == "versions" and parts[5].isascii() and parts[5].isdecimal():
        return name, parts[5], tuple(parts[6:])
    return name, "", tuple(parts[4:])


def _version(digits: str) -> int | None:
    if not digits:
        return None
    # Converting takes time quadratic in the number of digits, so those are looked at first.
    if len(digits) > _VERSION_DIGITS or int(digits) > _MAX_VERSION:
        shown = digits if len(digits) <= _MAX_SHOWN_DIGITS else f"{digits[:_MAX_SHOWN_DIGITS]}…"
        raise InvalidRequest(
            f"failed to get model version from specified version string '{shown}' (details: stol), "
            "version should be an integral value > 0"
        )
    return int(digits)


def _unsupported(what: str) -> Callable[[HttpRequest, HttpReply], None]:
    return partial(_refuse_unsupported, what)


def _refuse_unsupported(what: str, _request: HttpRequest, _reply: HttpReply) -> None:
    raise Unsupported(f"{what} is not supported by this server")
