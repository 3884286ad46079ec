"""Management over HTTP: loading models, settings of traces and logs, regions of shared memory, limits, debugging."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from time import monotonic_ns
from typing import Any, Final
from urllib.parse import parse_qs

import orjson

from conch.base.errors import ConfigError, InvalidRequest, NotFound, Unavailable, Unsupported
from conch.domain.limits import RATES, Limits, Quantity, read_limits
from conch.domain.tensor import Buffer
from conch.protocols.http.errors import JSON
from conch.protocols.http.long_replies import ReplyTasks, send_in_slices
from conch.protocols.http.message import HttpRequest, content_type
from conch.protocols.http.reply import HttpReply
from conch.protocols.regions import missing_name, not_allowed
from conch.protocols.v2_json import documents
from conch.protocols.v2_json.documents import (
    read_index,
    read_load,
    read_log_changes,
    read_trace_changes,
    read_unload,
    settings_document,
)
from conch.protocols.v2_json.large import MAX_INLINE_BYTES
from conch.protocols.v2_json.regions import read_cuda_registration, read_registration
from conch.server.core.inference import Inference
from conch.server.core.shared_memory.regions import SharedMemory
from conch.server.frontends.parts import Parts
from conch.server.limits.limiter import Limiter
from conch.server.limits.manager import LimitManager
from conch.server.observability.event_reading import EventReader
from conch.server.observability.incidents.incidents import Incidents
from conch.server.observability.incidents.triggers import Incident


class RepositoryEndpoints:
    """Endpoints below `/v2/repository`. Bodies are read before a task starts, which raises their errors here."""

    def __init__(self, parts: Parts, tasks: ReplyTasks) -> None:
        self._control = parts.control
        self._pool = parts.codecs
        self._tenants = parts.tenants
        self._tasks = tasks

    def index(self, request: HttpRequest, reply: HttpReply, _repository: str = "") -> None:
        """Answer with the index of all repositories. Raises InvalidRequest."""
        send_in_slices(reply, JSON, documents.index_pieces(self._control.index(read_index(request.body))))

    def load(self, request: HttpRequest, reply: HttpReply, name: str) -> None:
        """Load a model and answer when that is done. Raises InvalidRequest."""
        body = request.body
        small = read_load(body) if len(body) <= MAX_INLINE_BYTES else None

        async def load() -> None:
            config, files = small or await self._read_large(body, self._tenants.client_of_http(request, reply.peer))
            await self._control.load(name, config, files)
            reply.send(200, JSON)

        self._tasks.run(reply, load())

    async def _read_large(self, body: Buffer, client: str) -> tuple[str | None, dict[str, bytes]]:
        """Have a worker process decode the files of a load. Raises InvalidRequest."""
        meta, parts = await self._pool.run("load", {}, [body], client=client)
        files = {}
        for name, part in zip(meta["files"], parts, strict=True):
            files[name] = await asyncio.to_thread(bytes, part)
        return meta["config"], files

    def refuse_repository(self, _request: HttpRequest, _reply: HttpReply, _name: str) -> None:
        """Refuse to load or unload a model of one repository. Raises Unsupported."""
        raise Unsupported("'repository_name' specification is not supported by this server")

    def unload(self, request: HttpRequest, reply: HttpReply, name: str) -> None:
        """Unload a model and answer when it takes no more requests. Raises InvalidRequest."""
        unload_dependents = read_unload(request.body)

        async def unload() -> None:
            await self._control.unload(name, unload_dependents)
            reply.send(200, JSON)

        self._tasks.run(reply, unload())


class SettingsEndpoints:
    """Endpoints `/v2/trace/setting`, `/v2/models/<model>/trace/setting` and `/v2/logging`."""

    def __init__(self, parts: Parts) -> None:
        self._inference = parts.inference
        self._observer = parts.observer
        self._log = parts.log

    def trace(self, request: HttpRequest, reply: HttpReply) -> None:
        """Answer with the settings of all models, changed first by a POST. Raises ConchError."""
        self._trace(request, reply, "")

    def model_trace(self, request: HttpRequest, reply: HttpReply, name: str) -> None:
        """Answer with the settings of a model, changed first by a POST. Raises ConchError."""
        check_model(self._inference, name)
        self._trace(request, reply, name)

    def logging(self, request: HttpRequest, reply: HttpReply) -> None:
        """Answer with the log's settings, changed first by a POST. Raises ConchError."""
        if request.method == b"POST":
            self._log.update(read_log_changes(request.body))
            self._observer.follow_verbosity(self._log.log_verbose_level)
        reply.send(200, JSON, settings_document(self._log.document()))

    def _trace(self, request: HttpRequest, reply: HttpReply, model: str) -> None:
        if request.method == b"POST":
            try:
                self._observer.update(model, read_trace_changes(request.body))
            except InvalidRequest as error:  # Triton writes no space here, and one over gRPC
                raise InvalidRequest(error.message.replace("value >= -1, got: ", "value >= -1, got:")) from None
        reply.send(200, JSON, settings_document(self._observer.document(model)))


# Their paths: the kind of region, and how one is registered.
_REGION_KINDS: dict[str, tuple[str, Callable[[Buffer], tuple[Any, ...]], Callable[..., None]]] = {
    "systemsharedmemory": ("system", read_registration, SharedMemory.register),
    "cudasharedmemory": ("cuda", read_cuda_registration, SharedMemory.register_cuda),
}


class SharedMemoryEndpoints:
    """Endpoints below `/v2/systemsharedmemory` and `/v2/cudasharedmemory`; all are refused without a `memory`."""

    def __init__(self, memory: SharedMemory | None) -> None:
        self._memory = memory

    def endpoint(self, kind: str, action: str) -> Callable[..., None]:
        """Return the handler of `/v2/<kind>[/region/<name>]/<action>`."""
        return partial(self._answer, kind, action)

    def _answer(self, path: str, action: str, request: HttpRequest, reply: HttpReply, name: str = "") -> None:
        kind, read, register = _REGION_KINDS[path]
        memory = self._memory
        if memory is None:
            raise not_allowed("this endpoint")
        if action == "status":
            reply.send(200, JSON, orjson.dumps(memory.status(name, kind)))
            return
        if action == "unregister":
            memory.unregister(name, kind)
        elif not name:
            raise missing_name(kind)
        else:
            register(memory, name, *read(request.body))
        reply.send(200, JSON)


def check_model(inference: Inference, name: str) -> None:
    """Raise InvalidRequest for a model that is not served: its settings would have no effect."""
    try:
        inference.model(name, None)
    except NotFound:
        raise InvalidRequest(f"Request for unknown model : {name}") from None


_KINDS = (("soft", False), ("enforced", True))


class LimitsEndpoints:
    """Serves `/v2/limits`."""

    def __init__(self, parts: Parts, tasks: ReplyTasks) -> None:
        self._inference = parts.inference
        self._manager = parts.limits
        self._tasks = tasks
        self._tenants = parts.tenants

    def answer(self, request: HttpRequest, reply: HttpReply) -> None:
        """GET the limits in force, PUT those of the administrator, or DELETE them. Raises ConchError."""
        manager = self._present()
        if request.method == b"GET":
            reply.send(200, JSON, orjson.dumps(self._document(manager)))
            return
        limits: Limits = {}
        if request.method == b"PUT":
            limits = _read(request)
        elif len(request.body):
            raise InvalidRequest("DELETE takes no body; it removes all limits of the administrator")
        who = self._who(request, reply)
        what = "limits set" if request.method == b"PUT" else "limits removed"
        self._change(reply, manager, lambda: manager.set_admin(limits, who, what))

    def roll_back(self, request: HttpRequest, reply: HttpReply) -> None:
        """Undo the last change by the administrator. Raises ConchError."""
        manager = self._present()
        who = self._who(request, reply)

        async def undo() -> bool:
            if not await manager.roll_back(who):
                raise InvalidRequest("nothing to roll back: the administrator has changed no limit since the start")
            return True

        self._change(reply, manager, undo)

    def _change(self, reply: HttpReply, manager: LimitManager, change: Callable[[], Awaitable[bool]]) -> None:
        async def answer() -> None:
            changed = await change()
            document = {"changed": changed, "audited": manager.audit is not None, **self._document(manager)}
            reply.send(200, JSON, orjson.dumps(document))

        self._tasks.run(reply, answer())

    def _present(self) -> LimitManager:
        if self._manager is None:
            raise Unsupported("this server has no limits")
        return self._manager

    def _who(self, request: HttpRequest, reply: HttpReply) -> str:
        key = self._tenants.key_name(request)
        return f"key:{key}" if key else f"client:{reply.peer or 'unix socket'}"

    def _document(self, manager: LimitManager) -> dict[str, object]:
        return {**manager.document(), "models": self._models(manager.limiter)}

    def _models(self, limiter: Limiter) -> list[dict[str, object]]:
        """Return limits and rates of each model version, all tenants together, and of an ensemble those of its stages.

        `effective_requests_per_second` is the rate of an ensemble at which it or one of its stages is at its limit.
        """
        entries: list[dict[str, object]] = []
        for model in self._inference.models():
            entry = _version_entry(limiter, model.config.name, str(model.version))
            stages = self._inference.stages(model).items()
            if stages:
                entry["stages"] = [
                    _version_entry(limiter, stage.config.name, str(stage.version))
                    | {"requests_per_request": requests.number, "exact": requests.exact}
                    for stage, requests in stages
                ]
                factors = [(model.config.name, str(model.version), 1)]
                factors += [(stage.config.name, str(stage.version), requests.number) for stage, requests in stages]
                entry["effective_requests_per_second"] = {
                    kind: limiter.table.tightest(factors, Quantity.REQUESTS, enforced=enforced)
                    for kind, enforced in _KINDS
                }
            entries.append(entry)
        return entries


def _read(request: HttpRequest) -> Limits:
    try:
        return read_limits(orjson.loads(request.body), "body")
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the body is not JSON: {error}") from None
    except ConfigError as error:
        raise InvalidRequest(error.message) from None


def _version_entry(limiter: Limiter, model: str, version: str) -> dict[str, object]:
    factors = [(model, version, 1)]
    limits = {
        quantity.value: {
            kind: limiter.table.tightest(factors, quantity, enforced=enforced) for kind, enforced in _KINDS
        }
        for quantity in RATES
    }
    rate = limiter.rate(model, version, monotonic_ns())
    return {"model": model, "version": version, **limits, "requests_in_last_second": rate}


_DEFAULT_LAST_S: Final = 300.0
_MAX_LAST_S: Final = 1e9
MAX_READING: Final = 4  # readings of the event log at the same time, each with a copy of it
_BINARY: Final = content_type(b"application/octet-stream")


class DebugEndpoints:
    """Serves `/v2/debug`."""

    def __init__(self, parts: Parts, tasks: ReplyTasks) -> None:
        self._events = parts.events
        self._incidents = parts.incidents
        self._tasks = tasks
        self._reading = 0

    def events(self, request: HttpRequest, reply: HttpReply) -> None:
        """Answer with the event log of the last seconds, as a file. Raises ConchError."""
        if self._events is None:
            raise Unavailable("the event log is off (--event-log-bytes=0)")
        if self._reading >= MAX_READING:
            raise Unavailable("the event log is being read by others; try again in some seconds", retry_after_s=5)
        last_s = _last_s(request.query)
        self._reading += 1
        self._tasks.run(reply, self._send(reply, self._events, last_s))

    def incident(self, request: HttpRequest, reply: HttpReply) -> None:
        """GET a bundle of the last seconds, or POST to have one written to --incident-dir. Raises ConchError."""
        if self._incidents is None:
            raise Unavailable("this server writes no incident bundles")
        last_s = _last_s(request.query)
        incident = Incident("request", f"a client at {reply.peer or 'a unix socket'} asked for a bundle")
        if request.method == b"POST":
            reply.send(200, JSON, orjson.dumps({"outcome": self._incidents.report(incident)}))
        else:
            self._tasks.run(reply, self._send_bundle(reply, self._incidents, last_s, incident))

    async def _send_bundle(self, reply: HttpReply, incidents: Incidents, last_s: float, incident: Incident) -> None:
        reply.send(200, _BINARY, await incidents.bundle(last_s, incident))

    async def _send(self, reply: HttpReply, events: EventReader, last_s: float) -> None:
        try:
            log = await events.read_bytes(last_s)
        finally:
            self._reading -= 1
        reply.send(200, _BINARY, log)


def _last_s(query: bytes) -> float:
    """Return the seconds that a query asks for. Raises InvalidRequest."""
    values = parse_qs(query.decode("latin-1"), keep_blank_values=True, max_num_fields=None)
    if unknown := sorted(set(values) - {"last"}):
        raise InvalidRequest(f"unknown query parameter '{unknown[0]}', expected last=<seconds>")
    text = values.get("last", [str(_DEFAULT_LAST_S)])[-1]
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= _MAX_LAST_S:
        raise InvalidRequest(f"last={text[:50]} is not a number of seconds")
    return seconds
