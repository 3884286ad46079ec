"""The loop of an engine that has an event loop of its own: orders in, one message out for each turn."""

from __future__ import annotations

import asyncio
import os
import socket
import traceback
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, Optional

from ..ipc.wire import READ_SIZE, FrameDecoder, Message, encode
from . import messages
from .driver import Event, Prompt, Refused

# What a request has to tell: deltas, and its usage with the last of them. See `messages`.
News = tuple[tuple[Any, ...], Optional[tuple[int, int, int]]]


class LoopEngine(ABC):
    """One engine with one model. Made inside the loop that runs it; loads the model when it is made."""

    info: dict[str, Any]  # what `EngineInfo` holds, by its names

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._events: list[Event] = []
        self._to_be_told = False

    @abstractmethod
    def begin(self, key: int, prompt: Prompt, params: dict[str, Any], adapter: str, priority: int) -> None:
        """Begin a request; what becomes of it is told by `tell`, refusals included."""

    @abstractmethod
    def abort(self, key: int) -> None:
        """End a request, if it has not ended, without a word."""

    @abstractmethod
    def close(self) -> None:
        """End every request and the engine's own processes."""

    @abstractmethod
    def stats(self) -> tuple[int, int, float, int, int, int]:
        """Return how busy the engine is; see `messages`."""

    def obey(self, message: Message) -> bool:
        """Do what the server says; False for the end."""
        kind = message[0]
        if kind == messages.GENERATE:
            self.begin(*message[1:])
        elif kind == messages.ABORT:
            self.abort(message[1])
        return bool(kind != messages.STOP)

    def tell(self, event: Event) -> None:
        """Keep an event for the message of this turn of the loop: what a step has brought goes out together."""
        self._events.append(event)
        self.tell_figures()

    def tell_figures(self) -> None:
        """Tell the server how busy the engine is, at the end of this turn of the loop."""
        if not self._to_be_told:
            self._to_be_told = True
            asyncio.get_running_loop().call_soon(self._flush)

    def log(self, level: int, text: str) -> None:
        """Have the server log a line."""
        self._writer.write(encode((messages.LOG, level, text)))

    def _flush(self) -> None:
        events, self._events = self._events, []
        self._to_be_told = False
        self._writer.write(encode((messages.STEP, events, self.stats())))


class AsyncEngine(LoopEngine):
    """An engine whose requests are read from, by a task for each."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        super().__init__(writer)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._begun: set[int] = set()

    @abstractmethod
    def generate(
        self, key: int, prompt: Prompt, params: dict[str, Any], adapter: str, priority: int
    ) -> AsyncIterator[News]:
        """Run a request. Raises Refused; cancelling the task that reads from it ends it in the engine."""

    @abstractmethod
    def is_broken(self, error: Exception) -> bool:
        """Return whether the engine as a whole is of no use after this error: the server then starts another."""

    @abstractmethod
    def shut_down(self) -> None:
        """End the engine's own processes."""

    def stats(self) -> tuple[int, int, float, int, int, int]:
        """Return how many requests have begun to answer, and how many have not."""
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
        self.shut_down()

    async def _run(self, key: int, prompt: Prompt, params: dict[str, Any], adapter: str, priority: int) -> None:
        try:
            async for deltas, end in self.generate(key, prompt, params, adapter, priority):
                self._begun.add(key)
                self.tell((key, deltas, end))
        except Refused as refused:
            self.tell((key, (), (refused.code, refused.text)))
        except ValueError as error:  # how engines say that a request cannot be
            self.tell((key, (), (messages.INVALID_ARG, str(error))))
        except Exception as error:  # what becomes of one request must not end the others
            self.tell((key, (), (messages.INTERNAL, f"{type(error).__name__}: {error}")))
            if self.is_broken(error):
                traceback.print_exc()
                os._exit(1)  # the server tells the others, and starts another process
        finally:
            self._tasks.pop(key, None)
            self._begun.discard(key)
            self.tell_figures()


def serve(
    connection: socket.socket,
    decoder: FrameDecoder,
    backlog: list[Message],
    make: Callable[[asyncio.StreamWriter], LoopEngine],
) -> None:
    """Load the engine that `make` makes and run it until the server ends the connection or says STOP."""
    run: Any = asyncio.run
    with suppress(ImportError):  # what has a web server of its own brings it
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
            writer.write(encode((messages.LOG, messages.ERROR, traceback.format_exc().rstrip())))
        writer.write(encode((messages.LOADED, text, {})))
        writer.close()
        await writer.wait_closed()
        return
    writer.write(encode((messages.LOADED, "", engine.info)))
    try:
        going = all(engine.obey(message) for message in backlog)
        while going:
            data = await reader.read(READ_SIZE)
            going = bool(data) and all(engine.obey(message) for message, _ in decoder.feed(data))
    finally:
        engine.close()
