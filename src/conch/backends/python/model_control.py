"""Model control from a Python model: load or unload other models, check whether they are ready."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeAlias

from conch.backends.base import ModelSource
from conch.backends.bls import ModelCalls
from conch.backends.child.conch_child.ipc.wire import Message
from conch.backends.child.conch_child.python import messages
from conch.backends.python.tensor_exchange import TensorExchange
from conch.errors import ConchError

_FILE_PREFIX = "file:"

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
        _, key, kind, name, argument, placed = message
        files = {
            path.removeprefix(_FILE_PREFIX): bytes(tensors.data(path, place, size, payload))
            for path, place, size in placed
        }
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
