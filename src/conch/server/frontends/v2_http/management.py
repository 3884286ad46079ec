"""Management over HTTP: loading models, trace and log settings, and regions of shared memory."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import orjson

from conch.base.errors import InvalidRequest, NotFound, Unsupported
from conch.domain.tensor import Buffer
from conch.protocols.http.errors import JSON
from conch.protocols.http.long_replies import ReplyTasks, send_in_slices
from conch.protocols.http.message import HttpRequest
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
