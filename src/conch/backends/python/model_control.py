"""What a model asks of other models' lives: to load or unload them, and whether they are ready."""

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

Work: TypeAlias = Callable[[str, Any, dict[str, bytes]], Any]


class Controls:
    """The questions of one process. What has been begun goes on when the process has gone."""

    def __init__(self, calls: ModelCalls, send: Callable[[Message], None], source: ModelSource) -> None:
        self.initializing = True  # loads are waited for by the model's own load
        self._calls = calls
        self._send = send
        self._source = source
        self._tasks: set[asyncio.Task[None]] = set()
        self._works: dict[int, Work] = {
            messages.LOAD: self._load,
            messages.UNLOAD: lambda name, dependents, _: calls.unload(name, dependents, self._waiting),
            messages.ASK: lambda name, version, _: calls.ready(name, version, source.namespace),
        }

    def asked(self, message: Message, payload: memoryview, tensors: TensorExchange) -> None:
        """Do what a CONTROL message asks for, in a task, and answer. Raises WireError."""
        _, key, what, name, argument, placed = message
        files = {
            path.removeprefix(_FILE_PREFIX): bytes(tensors.data(path, place, size, payload))
            for path, place, size in placed
        }
        task = asyncio.ensure_future(self._answer(key, self._works[what](name, argument, files)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, key: int, work: Any) -> None:
        try:
            value, error = await work, None
        except ConchError as failure:
            value, error = None, (failure.code.value, failure.message)
        self._send((messages.CONTROLLED, key, error, value))

    async def _load(self, name: str, config: str, files: dict[str, bytes]) -> None:
        await self._calls.load(name, config, files, self._waiting)

    @property
    def _waiting(self) -> ModelSource | None:
        return self._source if self.initializing else None
