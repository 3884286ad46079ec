"""The ports of hosting platforms: Amazon SageMaker and Google's Vertex AI.

Platforms forward a body and its content type, but no path and no other headers. The size of the JSON part of a body
with binary data is therefore a parameter of the content type.
"""

import asyncio
import re
from pathlib import Path
from typing import NamedTuple

import orjson

from conch.base.errors import Code, ConchError, ConfigError, InvalidRequest
from conch.domain.files.model_folder import is_model_name
from conch.protocols.http.errors import JSON, V2, send_error, send_refusal
from conch.protocols.http.long_replies import ReplyTasks
from conch.protocols.http.message import HttpRefusal, HttpRequest, content_type
from conch.protocols.http.reply import HttpReply
from conch.protocols.http.router import Router
from conch.protocols.json_document import parse, shown, text
from conch.protocols.v2_json.large import MAX_INLINE_BYTES
from conch.server.core.inference import Inference
from conch.server.core.loading.model_manager import ModelManager
from conch.server.frontends.parts import Parts
from conch.server.frontends.v2_http.infer import ReplyForm
from conch.server.repository.model_dir import ModelDirRoot
from conch.server.repository.model_kinds import is_model_folder
from conch.server.repository.model_location import Root
from conch.server.repository.roots import LocalRoot

_TEXT = content_type(b"text/plain")
_CONTENT_TYPE = b"content-type"
_LENGTH = b"inference-header-content-length"
# As C's atoi reads a number, as Triton does; a text without digits is 0.
_NUMBER = re.compile(rb"\s*([+-]?\d{1,10})")


def refused(status: int) -> HttpRefusal:
    """Return a refusal without a body, as Triton sends on these ports."""
    return HttpRefusal(status, "", _TEXT, b"")


def translated(request: HttpRequest, method: bytes, path: str, binary_type: bytes) -> HttpRequest:
    """Return the request to the HTTP port's path, with the header of the JSON part's size if the type has it.

    Raises HttpRefusal for a content type that only contains `binary_type`.
    """
    headers = {name: value for name, value in request.headers.items() if name != _LENGTH}
    given = headers.get(_CONTENT_TYPE, b"")
    if given.startswith(binary_type):
        number = _NUMBER.match(given, len(binary_type))
        headers[_LENGTH] = number[1] if number else b"0"
    elif binary_type in given:
        shown, expected = given.decode("latin-1"), binary_type.decode()
        raise HttpRefusal(400, f"expect MIME type for binary data starts with '{expected}', got: {shown}")
    fields = [field for field in request.fields if field[0].lower() != _LENGTH]
    copy = HttpRequest(method, path, fields, headers)
    copy.body = request.body
    copy.keep_alive = request.keep_alive
    copy.old_version = request.old_version
    return copy


_SAGEMAKER_BINARY = b"application/vnd.sagemaker-triton.binary+json;json-header-size="
_TARGET = b"x-amzn-sagemaker-target-model"
_PLACE = "/opt/ml/models"
_MODELS = re.compile(r"/models/?([^/]*)(/invoke)?")
_OUT_OF_MEMORY = re.compile(
    r"out ?of ?memory|MemoryError|\bOOM\b|No space left on device|allocate memory", re.IGNORECASE
)
_INSUFFICIENT_STORAGE = 507  # on which SageMaker unloads other models, and tries again
_STATUSES = ((_OUT_OF_MEMORY, _INSUFFICIENT_STORAGE),)
_PINGS = {"ready": "/v2/health/ready", "live": "/v2/health/live"}
_INFERENCES = ("infer", "generate", "generate_stream")


class _Hosted(NamedTuple):
    """A model that was loaded by a request: the name that it is served under, its folder, and the roots for it."""

    model: str
    folder: Path
    roots: tuple[Root, ...]


class SageMakerHttp:
    """The port of Amazon SageMaker: `/ping`, `/invocations`, and `/models` of endpoints with several models.

    An endpoint with several models loads and unloads them by requests, each from a folder into which SageMaker has
    unpacked an archive. SageMaker identifies a model by a hash, and the model is served under the name of the archive,
    which requests have in a header. Folders are accepted below the local model repositories and below `/opt/ml/models`,
    where SageMaker unpacks archives.
    """

    form = ReplyForm(_SAGEMAKER_BINARY, _STATUSES)

    def __init__(self, parts: Parts, v2: Router) -> None:
        """Create the handler. `v2` answers translated requests; its inference replies have `form`."""
        variables = dict(parts.options.platform_variables)
        self._model = variables.get("SAGEMAKER_TRITON_DEFAULT_MODEL_NAME", "")
        self._ping = _PINGS[variables.get("SAGEMAKER_TRITON_PING_MODE", "ready")]
        self._inference = variables.get("SAGEMAKER_TRITON_INFERENCE_TYPE", "infer")
        self._v2 = v2
        self._access = parts.http_access
        self._control: ModelManager = parts.control
        self._catalog = parts.inference
        self._tasks = ReplyTasks(self._report)
        self._hosted: dict[str, _Hosted] = {}
        self._loading: dict[str, Path] = {}
        places = [Path(place) for place in parts.options.model_repository if "://" not in place]
        self._places = [*places, Path(_PLACE)]

    def body_limit(self, request: HttpRequest) -> int:
        """Return how large the body of this request may be, in bytes."""
        inner = self._translated(request)
        return MAX_INLINE_BYTES if inner is None else self._v2.body_limit(inner)

    def refusal(self, request: HttpRequest) -> HttpRefusal | None:
        """Return why a request is refused whatever its body is; None if that depends on the body."""
        try:
            inner = self._translated(request)
        except HttpRefusal as refusal:
            return refusal
        return self._v2.refusal(inner) if inner else self._denied(request)

    def __call__(self, request: HttpRequest, reply: HttpReply) -> None:
        """Answer one request."""
        try:
            inner = self._translated(request)
            if inner is not None:
                self._v2(inner, reply)
            elif (denied := self._denied(request)) is not None:
                send_refusal(reply, denied)
            else:
                self._manage(request, reply, *_model_path(request.path))
        except HttpRefusal as refusal:
            send_refusal(reply, refusal)
        except ConchError as error:
            self._report(reply, error)

    def _denied(self, request: HttpRequest, category: str = "model-repository") -> HttpRefusal | None:
        denied = self._access.denied_http(category, request)
        return None if denied is None else V2.denied(request, denied)

    def _translated(self, request: HttpRequest) -> HttpRequest | None:
        """Return the request to the HTTP port, None for one that manages models. Raises HttpRefusal."""
        if request.path == "/ping":
            return translated(request, request.method, self._ping, _SAGEMAKER_BINARY)
        if request.path == "/invocations":
            return self._inference_request(request, self._model or self._only_model(request), self._inference)
        name, action = _model_path(request.path)
        if action:
            hosted = self._hosted.get(name)
            if hosted is None or request.method != b"POST":
                raise self._denied(request, "inference") or refused(404)  # without a key, all names look alike
            return self._inference_request(request, hosted.model, "infer")
        if request.method not in (b"GET", b"POST", b"DELETE"):
            raise refused(400)
        return None

    def _inference_request(self, request: HttpRequest, model: str, action: str) -> HttpRequest:
        return translated(request, request.method, f"/v2/models/{model}/{action}", _SAGEMAKER_BINARY)

    def _only_model(self, request: HttpRequest) -> str:
        """Return the only model. Raises HttpRefusal if there are several, or none."""
        names = {model.config.name for model in self._catalog.models()}
        if len(names) != 1:
            raise self._denied(request, "inference") or HttpRefusal(
                400,
                "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME must name the model of /invocations: there are several or none",
            )
        return names.pop()

    def _manage(self, request: HttpRequest, reply: HttpReply, name: str, _action: str) -> None:
        if request.method == b"POST":
            self._tasks.run(reply, self._load(reply, *_read_load(request)))
        elif request.method == b"DELETE":
            if name not in self._hosted:
                raise refused(404)
            self._tasks.run(reply, self._unload(reply, name))
        elif not name:
            ready = {model.config.name for model in self._catalog.models()}
            rows = [_row(key, hosted) for key, hosted in self._hosted.items() if hosted.model in ready]
            reply.send(200, JSON, orjson.dumps({"models": rows}))
        elif name in self._hosted:
            reply.send(200, JSON, orjson.dumps(_row(name, self._hosted[name])))
        else:
            raise refused(404)

    async def _load(self, reply: HttpReply, name: str, url: str, target: str) -> None:
        folder = await asyncio.to_thread(self._place, url)
        known = [hosted.folder for hosted in self._hosted.values()]
        if folder in (*known, *self._loading.values()):
            raise InvalidRequest(f"model repository '{folder}' has already been registered", Code.ALREADY_EXISTS)
        if name in self._hosted or name in self._loading:
            raise InvalidRequest(f"model {shown(name)} is loaded from another folder", Code.ALREADY_EXISTS)
        self._loading[name] = folder
        try:
            roots = await asyncio.to_thread(archive_roots, folder, target)
            await self._control.load_from(target, roots, str(folder))
            self._hosted[name] = _Hosted(target, folder, roots)
        finally:
            del self._loading[name]
        reply.send(200, JSON)

    async def _unload(self, reply: HttpReply, name: str) -> None:
        hosted = self._hosted.pop(name)
        self._loading[name] = hosted.folder  # not to be loaded again before that is done
        try:
            await self._control.unload_from(hosted.model, hosted.roots, str(hosted.folder))
        finally:
            del self._loading[name]
        reply.send(200, JSON)

    def _place(self, url: str) -> Path:
        """Return the folder of a load, with links resolved. Raises InvalidRequest if it is in no repository."""
        try:
            folder = Path(url).resolve(strict=True)
            allowed = url.startswith("/") and folder.is_dir()
            allowed = allowed and any(
                folder != place and folder.is_relative_to(place) for place in (root.resolve() for root in self._places)
            )
        except (OSError, ValueError, RuntimeError):  # missing, NUL bytes, a cycle of links
            allowed = False
        if not allowed:
            raise InvalidRequest(
                f"failed to register {shown(url)}, repository not found: expected a folder below a --model-repository "
                f"or {_PLACE}"
            )
        return folder

    def _report(self, reply: HttpReply, error: ConchError) -> None:
        """Answer with an error of a load: 409, 507 for too little memory, or, as in Triton, 400 for all others."""
        status = 409 if error.code is Code.ALREADY_EXISTS else self.form.status(error)
        send_error(reply, error, status or 400)


def _model_path(path: str) -> tuple[str, str]:
    """Return name and action of a path below `/models`. Raises HttpRefusal for any other path."""
    match = _MODELS.fullmatch(path)
    if match is None:
        raise refused(400)
    return match[1], match[2] or ""


def _row(name: str, hosted: _Hosted) -> dict[str, str]:
    return {"modelName": name, "modelUrl": str(hosted.folder)}


def _read_load(request: HttpRequest) -> tuple[str, str, str]:
    """Return SageMaker's name of a model, its folder, and the name to serve it under. Raises InvalidRequest."""
    document = parse(request.body) if request.body else {}
    if type(document) is not dict:
        raise InvalidRequest(f"the request body is a JSON object, not {shown(document)}")
    name, url = (text(document.get(key, ""), key) for key in ("model_name", "url"))
    if not name or "/" in name:
        raise InvalidRequest("'model_name' of the load is missing, or has a slash")
    target = request.headers.get(_TARGET, b"").decode("utf-8", "replace").lstrip("/")
    return name, url, target.replace("/", "_") or name


_ENSEMBLE = re.compile(rb'platform\s*:\s*"ensemble"')
_MAX_CONFIG_BYTES = 1 << 20


def archive_roots(folder: Path, name: str) -> tuple[Root, ...]:
    """Return the roots with the archive's model under `name`, and with the models of an ensemble's steps. Does I/O.

    The folder is a model's folder or has one of a model, or of an ensemble and its steps. Raises ConfigError.
    """
    try:
        inner = [path for path in sorted(folder.iterdir()) if is_model_name(path.name) and is_model_folder(path)]
        ensembles = [path for path in inner if _is_ensemble(path / "config.pbtxt")]
    except OSError as error:
        raise ConfigError(f"'{folder}' cannot be read: {error.strerror}") from error
    if is_model_folder(folder) or not inner:
        return (ModelDirRoot(folder, name),)
    chosen = ensembles or inner
    if len(chosen) > 1:
        names = ", ".join(f"'{path.name}'" for path in chosen)
        raise ConfigError(f"'{folder}' has several models, of which one must be an ensemble of the others: {names}")
    main = ModelDirRoot(chosen[0], name)
    return (main, LocalRoot(folder)) if len(inner) > 1 else (main,)


def _is_ensemble(config: Path) -> bool:
    if not config.is_file():
        return False
    with config.open("rb") as file:
        return _ENSEMBLE.search(file.read(_MAX_CONFIG_BYTES)) is not None


_VERTEX_BINARY = b"application/vnd.vertex-ai-triton.binary+json;json-header-size="
_REDIRECT = b"x-vertex-ai-triton-redirect"
_METRICS = "/metrics"
# What is not reachable by a redirect, as in Triton: settings of the server.
_WITHHELD = ("trace", "logging", "limits", "debug")


class VertexAiHttp:
    """The port of Vertex AI: a path for health and one for all else, with names that the platform sets.

    Requests go to the default model, or, with the header `X-Vertex-Ai-Triton-Redirect`, to the path of the HTTP port
    that it names. `v2` and `metrics` answer translated requests: those of the other ports.
    """

    def __init__(self, parts: Parts, v2: Router, metrics: Router) -> None:
        """Create the handler. Raises ConfigError if the platform's variables are missing."""
        variables = dict(parts.options.platform_variables)
        for name in ("AIP_PREDICT_ROUTE", "AIP_HEALTH_ROUTE"):
            if not variables.get(name):
                raise ConfigError(f"{name} is not defined for Vertex AI endpoint; Vertex AI sets this variable")
        self._predict, self._health = variables["AIP_PREDICT_ROUTE"], variables["AIP_HEALTH_ROUTE"]
        self._default_model = parts.options.vertex_ai_default_model
        self._inference: Inference = parts.inference
        self._access = parts.http_access
        self._v2 = v2
        self._metrics = metrics

    def body_limit(self, request: HttpRequest) -> int:
        """Return how large the body of this request may be, in bytes."""
        handler, inner = self._routed(request)
        return handler.body_limit(inner)

    def refusal(self, request: HttpRequest) -> HttpRefusal | None:
        """Return why a request is refused whatever its body is; None if that depends on the body."""
        try:
            handler, inner = self._routed(request)
        except HttpRefusal as refusal:
            return refusal
        return handler.refusal(inner)

    def __call__(self, request: HttpRequest, reply: HttpReply) -> None:
        """Answer one request."""
        try:
            handler, inner = self._routed(request)
        except HttpRefusal as refusal:
            send_refusal(reply, refusal)
        else:
            handler(inner, reply)

    def _routed(self, request: HttpRequest) -> tuple[Router, HttpRequest]:
        """Return the handler and the request that it gets. Raises HttpRefusal."""
        if request.path == self._health:
            return self._v2, translated(request, request.method, "/v2/health/ready", _VERTEX_BINARY)
        if request.path != self._predict:
            raise refused(400)
        redirect = request.headers.get(_REDIRECT)
        if redirect is None:
            path = f"/v2/models/{self._model(request)}/infer"
            return self._v2, translated(
                request, request.method, f"/v2/models/{self._model(request)}/infer", _VERTEX_BINARY
            )
        if request.method != b"POST":
            raise refused(405)
        path = "/" + redirect.decode("latin-1")
        if path == _METRICS:
            return self._metrics, translated(request, b"GET", path, _VERTEX_BINARY)
        served = self._v2.served(path)
        if not path.startswith("/v2") or not served or served[0].category in _WITHHELD:
            raise refused(400)
        methods = [method for route in served for method in route.methods]
        return self._v2, translated(request, b"POST" if b"POST" in methods else b"GET", path, _VERTEX_BINARY)

    def _model(self, request: HttpRequest) -> str:
        """Return the default model. Raises HttpRefusal if none is chosen."""
        if self._default_model:
            return self._default_model
        names = {model.config.name for model in self._inference.models()}
        if len(names) != 1:
            denied = self._access.denied_http("inference", request)  # without a key, the number of models is unknown
            if denied is not None:
                raise V2.denied(request, denied)
            raise HttpRefusal(
                400,
                "Expect the model repository contains only a single model if default model is not specified; "
                "--vertex-ai-default-model names it",
            )
        return names.pop()
