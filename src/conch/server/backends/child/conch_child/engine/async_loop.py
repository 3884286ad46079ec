"""Serve an engine that runs on asyncio: messages in, one STEP message out per iteration of the event loop."""

from __future__ import annotations

import asyncio
import os
import socket
import traceback
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, Optional

from ..ipc.wire import READ_SIZE, FrameDecoder, Message, encode_to_server, shortened
from . import messages
from .driver import ADAPTERS_AT_LOAD, Event, Prompt, Refused
from .steps import encode_step

# Deltas of a request, and its usage with the last of them. See `messages`.
Chunk = tuple[tuple[Any, ...], Optional[tuple[int, ...]]]


class LoopEngine(ABC):
    """One engine with one model. Constructed inside its running event loop; the constructor loads the model."""

    info: dict[str, Any]  # the fields of `EngineInfo`

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._events: list[Event] = []
        self._flush_scheduled = False
        self._adapter_tasks: set[asyncio.Future[None]] = set()

    @abstractmethod
    def begin(self, key: int, prompt: Prompt, params: dict[str, Any], adapter: str, priority: int) -> None:
        """Begin a request. Its deltas and errors, refusals included, go to `emit`."""

    @abstractmethod
    def abort(self, key: int) -> None:
        """Abort a request without emitting an event; a no-op for one that has ended."""

    @abstractmethod
    def close(self) -> None:
        """Abort all requests and stop the engine's processes."""

    @abstractmethod
    def stats(self) -> tuple[int, int, float, int, int, int]:
        """Return the engine's load as `messages` describes it."""

    def handle(self, message: Message) -> bool:
        """Handle a message of the server; return False for STOP."""
        kind = message[0]
        if kind == messages.GENERATE:
            self.begin(*message[1:])
        elif kind == messages.ABORT:
            self.abort(message[1])
        elif kind == messages.ADAPTER:
            key, name, path = message[1:]
            task = asyncio.ensure_future(self._answer_adapter(key, name, path))
            self._adapter_tasks.add(task)
            task.add_done_callback(self._adapter_tasks.discard)
        return bool(kind != messages.STOP)

    async def set_adapter(self, name: str, path: str) -> None:  # noqa: ARG002 - for overrides
        """Load a LoRA adapter, or unload it if `path` is "". Raises Refused."""
        raise Refused(ADAPTERS_AT_LOAD, messages.UNSUPPORTED)

    async def _answer_adapter(self, key: int, name: str, path: str) -> None:
        code, text = 0, ""
        try:
            await self.set_adapter(name, path)
        except Refused as refused:
            code, text = refused.code, refused.text
        except Exception as error:  # of a damaged adapter, which must not end requests
            code, text = messages.INVALID_ARG, f"{type(error).__name__}: {error}"
        self._writer.write(encode_to_server((messages.ADAPTER_SET, key, code, shortened(text))))

    def emit(self, event: Event) -> None:
        """Queue an event for this iteration's STEP message, which holds all events of one engine step."""
        self._events.append(event)
        self.emit_stats()

    def emit_stats(self) -> None:
        """Send a STEP message with current stats at the end of this event loop iteration."""
        if not self._flush_scheduled:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def log(self, level: int, text: str) -> None:
        """Send a log line to the server."""
        self._writer.write(encode_to_server((messages.LOG, level, shortened(text))))

    def _flush(self) -> None:
        events, self._events = self._events, []
        self._flush_scheduled = False
        frames, refused = encode_step(events, self.stats())
        self._writer.write(frames)
        for key in refused:
            self.abort(key)


class AsyncEngine(LoopEngine):
    """An engine with one asyncio task per request, which reads an async iterator of its output."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        super().__init__(writer)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._begun: set[int] = set()

    @abstractmethod
    def generate(
        self, key: int, prompt: Prompt, params: dict[str, Any], adapter: str, priority: int
    ) -> AsyncIterator[Chunk]:
        """Run a request. Raises Refused. Cancelling the task that iterates aborts the request in the engine."""

    @abstractmethod
    def is_fatal(self, error: Exception) -> bool:
        """Return whether this error leaves the engine unusable; its process then exits and the server restarts it."""

    @abstractmethod
    def shutdown_engine(self) -> None:
        """Stop the engine's processes."""

    def stats(self) -> tuple[int, int, float, int, int, int]:
        """Count requests with output as running, those without as waiting."""
        running = len(self._begun)
        return running, max(len(self._tasks) - running, 0), 0.0, 0, 0, 0

    def begin(self, key: int, prompt: Prompt, params: dict[str, Any], adapter: str, priority: int) -> None:
        self._tasks[key] = asyncio.create_task(self._run(key, prompt, params, adapter, priority))

    def abort(self, key: int) -> None:
        task = self._tasks.pop(key, None)
        if task is not None:
            task.cancel()

    def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        self.shutdown_engine()

    async def _run(self, key: int, prompt: Prompt, params: dict[str, Any], adapter: str, priority: int) -> None:
        try:
            async for deltas, end in self.generate(key, prompt, params, adapter, priority):
                self._begun.add(key)
                self.emit((key, deltas, end))
        except Refused as refused:
            self.emit((key, (), (refused.code, refused.text)))
        except ValueError as error:  # engines raise it for invalid parameters
            self.emit((key, (), (messages.INVALID_ARG, str(error))))
        except Exception as error:  # one request's failure must not end the others
            self.emit((key, (), (messages.INTERNAL, f"{type(error).__name__}: {error}")))
            if self.is_fatal(error):
                traceback.print_exc()
                os._exit(1)  # the server fails the other requests and restarts the process
        finally:
            self._tasks.pop(key, None)
            self._begun.discard(key)
            self.emit_stats()


def serve(
    connection: socket.socket,
    decoder: FrameDecoder,
    backlog: list[Message],
    make: Callable[[asyncio.StreamWriter], LoopEngine],
) -> None:
    """Construct the engine with `make` and run it until STOP or the end of the connection."""
    run: Any = asyncio.run
    with suppress(ImportError):  # installed with engines that include a web server
        import uvloop

        run = uvloop.run
    run(_serve(connection, decoder, backlog, make))


async def _serve(
    connection: socket.socket,
    decoder: FrameDecoder,
    backlog: list[Message],
    make: Callable[[asyncio.StreamWriter], LoopEngine],
) -> None:
    connection.setblocking(False)
    reader, writer = await asyncio.open_unix_connection(sock=connection)
    try:
        engine = make(writer)
    except Exception as error:
        text = error.text if isinstance(error, Refused) else f"{type(error).__name__}: {error}".rstrip()
        if not isinstance(error, Refused):
            writer.write(encode_to_server((messages.LOG, messages.ERROR, shortened(traceback.format_exc().rstrip()))))
        writer.write(encode_to_server((messages.LOADED, shortened(text), {})))
        writer.close()
        await writer.wait_closed()
        return
    writer.write(encode_to_server((messages.LOADED, "", engine.info)))
    try:
        running = all(engine.handle(message) for message in backlog)
        while running:
            data = await reader.read(READ_SIZE)
            running = bool(data) and all(engine.handle(message) for message, _ in decoder.feed(data))
    finally:
        engine.close()
