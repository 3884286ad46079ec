"""The port of Amazon SageMaker: `/ping`, `/invocations`, and `/models` of endpoints with several models.

An endpoint with several models loads and unloads them by requests, each from a folder into which SageMaker has unpacked
an archive. SageMaker identifies a model by a hash, and the model is served under the name of the archive, which
requests have in a header. Folders are accepted below the local model repositories and below `/opt/ml/models`, where
SageMaker unpacks archives.
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
from conch.protocols.http.message import HttpRefusal, HttpRequest
from conch.protocols.http.reply import HttpReply
from conch.protocols.http.router import Router
from conch.protocols.json_document import parse, shown, text
from conch.protocols.v2_json.large import MAX_INLINE_BYTES
from conch.server.core.loading.model_manager import ModelManager
from conch.server.frontends.cloud.platform_request import refused, translated
from conch.server.frontends.parts import Parts
from conch.server.frontends.v2_http.infer import ReplyForm
from conch.server.repository.model_dir import ModelDirRoot
from conch.server.repository.model_kinds import is_model_folder
from conch.server.repository.model_location import Root
from conch.server.repository.roots import LocalRoot

_BINARY = b"application/vnd.sagemaker-triton.binary+json;json-header-size="
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
    """Handler of the port of SageMaker."""

    form = ReplyForm(_BINARY, _STATUSES)

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
            return translated(request, request.method, self._ping, _BINARY)
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
        return translated(request, request.method, f"/v2/models/{model}/{action}", _BINARY)

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
