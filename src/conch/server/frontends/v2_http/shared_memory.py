"""Shared memory over HTTP: register, unregister and list regions."""

from collections.abc import Callable
from functools import partial

from conch.protocols.http.errors import JSON
from conch.protocols.http.message import HttpRequest
from conch.protocols.http.reply import HttpReply
from conch.protocols.regions import missing_name, not_allowed
from conch.protocols.v2_json.regions import read_cuda_registration, read_registration, write_cuda_status, write_status
from conch.server.core.shared_memory.regions import SharedMemory

# Answers for the region of that name, "" where the path has none.
_Action = Callable[[str, HttpRequest, HttpReply], None]


class SharedMemoryEndpoints:
    """Endpoints below `/v2/systemsharedmemory` and `/v2/cudasharedmemory`; all are refused without a `memory`."""

    def __init__(self, memory: SharedMemory | None) -> None:
        self._memory = memory
        self._actions: dict[tuple[str, str], _Action] = {
            ("systemsharedmemory", "status"): self._status,
            ("systemsharedmemory", "register"): self._register,
            ("systemsharedmemory", "unregister"): self._unregister,
            ("cudasharedmemory", "status"): self._cuda_status,
            ("cudasharedmemory", "register"): self._cuda_register,
            ("cudasharedmemory", "unregister"): self._cuda_unregister,
        }

    def find(self, kind: str, name: str, action: str) -> Callable[[HttpRequest, HttpReply], None] | None:
        """Return the handler of `/v2/<kind>[/region/<name>]/<action>`, None if there is none."""
        found = self._actions.get((kind, action))
        return found and partial(found, name)

    def _status(self, name: str, _request: HttpRequest, reply: HttpReply) -> None:
        reply.send(200, JSON, write_status(self._allowed().status(name)))

    def _register(self, name: str, request: HttpRequest, reply: HttpReply) -> None:
        memory = self._allowed()
        if not name:
            raise missing_name("system")
        memory.register(name, *read_registration(request.body))
        reply.send(200, JSON)

    def _unregister(self, name: str, _request: HttpRequest, reply: HttpReply) -> None:
        self._allowed().unregister(name)
        reply.send(200, JSON)

    def _cuda_status(self, name: str, _request: HttpRequest, reply: HttpReply) -> None:
        reply.send(200, JSON, write_cuda_status(self._allowed().cuda_status(name)))

    def _cuda_register(self, name: str, request: HttpRequest, reply: HttpReply) -> None:
        memory = self._allowed()
        if not name:
            raise missing_name("cuda")
        memory.register_cuda(name, *read_cuda_registration(request.body))
        reply.send(200, JSON)

    def _cuda_unregister(self, name: str, _request: HttpRequest, reply: HttpReply) -> None:
        self._allowed().unregister_cuda(name)
        reply.send(200, JSON)

    def _allowed(self) -> SharedMemory:
        if self._memory is None:
            raise not_allowed("this endpoint")
        return self._memory
