"""Model control over HTTP: the repository's index, loading and unloading."""

import asyncio

from conch.domain.tensor import Buffer
from conch.protocols.http.errors import JSON
from conch.protocols.http.message import HttpRequest
from conch.protocols.http.reply import HttpReply
from conch.protocols.http.sliced_reply import send_in_slices
from conch.protocols.http.tasks import ReplyTasks
from conch.protocols.v2_json import documents
from conch.protocols.v2_json.large import MAX_INLINE_BYTES
from conch.protocols.v2_json.repository import read_index, read_load, read_unload
from conch.server.core.loading.model_manager import ModelManager
from conch.server.frontends.offload.pool import OffloadPool
from conch.server.frontends.tenants import Tenants


class RepositoryEndpoints:
    """Endpoints below `/v2/repository`. Bodies are read before a task starts, which raises their errors here."""

    def __init__(self, control: ModelManager, tasks: ReplyTasks, pool: OffloadPool, tenants: Tenants) -> None:
        self._control = control
        self._tasks = tasks
        self._pool = pool
        self._tenants = tenants

    def index(self, request: HttpRequest, reply: HttpReply) -> None:
        """Answer with the index. Raises InvalidRequest."""
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

    def unload(self, request: HttpRequest, reply: HttpReply, name: str) -> None:
        """Unload a model and answer when it takes no more requests. Raises InvalidRequest."""
        unload_dependents = read_unload(request.body)

        async def unload() -> None:
            await self._control.unload(name, unload_dependents)
            reply.send(200, JSON)

        self._tasks.run(reply, unload())
