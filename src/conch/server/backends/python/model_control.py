"""Model control from a Python model: load or unload other models, check whether they are ready."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeAlias

from conch.base.errors import Code, ConchError
from conch.server.backends.base import ModelSource
from conch.server.backends.bls import ModelCalls
from conch.server.backends.child.conch_child.ipc.wire import Message
from conch.server.backends.child.conch_child.python import messages
from conch.server.backends.processes import untrusted
from conch.server.backends.python.tensor_exchange import TensorExchange

_FILE_PREFIX = "file:"
# Operations of one process that have not ended.
MAX_TASKS = 1000
_MAX_KEY = 2**63 - 1

Operation: TypeAlias = Callable[[str, Any, dict[str, bytes]], Any]


class ModelControls:
    """Control requests of one process. An operation that has begun continues after the process has exited."""

    def __init__(self, calls: ModelCalls, send: Callable[[Message], None], source: ModelSource) -> None:
        self.initializing = True  # the load of the model itself waits for the loads that it requests
        self._calls = calls
        self._send = send
        self._source = source
        self._tasks: set[asyncio.Task[None]] = set()
        self._operations: dict[int, Operation] = {
            messages.LOAD: self._load,
            messages.UNLOAD: lambda name, dependents, _: calls.unload(name, dependents, self._waiting_model),
            messages.ASK: lambda name, version, _: calls.ready(name, version, source.namespace),
        }

    def handle(self, message: Message, payload: memoryview, tensors: TensorExchange) -> None:
        """Start the operation of a CONTROL message in a task that answers it. Raises WireError."""
        _, key, kind, given, argument, placed = untrusted.items(message, 6, "CONTROL")
        untrusted.integer(key, 0, _MAX_KEY, "the key of a call")
        untrusted.integer(kind, messages.LOAD, messages.ASK, "an operation")
        name = untrusted.name(given, "the name of a model")
        if kind == messages.UNLOAD:
            untrusted.flag(argument, "whether to unload dependents")
        else:
            untrusted.text(argument, "the argument of an operation")
        files = dict(_file(fields, tensors, payload) for fields in untrusted.array(placed, "files"))
        if len(self._tasks) >= MAX_TASKS:
            error = (Code.UNAVAILABLE.value, f"the model waits for {MAX_TASKS} of its loads and unloads already")
            self._send((messages.CONTROLLED, key, error, None))
            return
        task = asyncio.ensure_future(self._answer(key, self._operations[kind](name, argument, files)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, key: int, operation: Any) -> None:
        try:
            value, error = await operation, None
        except ConchError as failure:
            value, error = None, (failure.code.value, failure.message)
        self._send((messages.CONTROLLED, key, error, value))

    async def _load(self, name: str, config: str, files: dict[str, bytes]) -> None:
        await self._calls.load(name, config, files, self._waiting_model)

    @property
    def _waiting_model(self) -> ModelSource | None:
        return self._source if self.initializing else None


def _file(fields: Any, tensors: TensorExchange, payload: memoryview) -> tuple[str, bytes]:
    """Return path and content of a file that replaces one in the repository. Raises WireError."""
    path, place, size = untrusted.items(fields, 3, "a file")
    untrusted.name(path, "the path of a file")
    untrusted.integer(size, 0, untrusted.MAX_COUNT, "the size of a file")
    return path.removeprefix(_FILE_PREFIX), bytes(tensors.data(path, place, size, payload))
