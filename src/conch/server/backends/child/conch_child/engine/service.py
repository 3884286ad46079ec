"""Main loop of an engine process: read messages, run a step, send one STEP message for all requests."""

from __future__ import annotations

import select
import socket
import traceback
from importlib import import_module
from time import monotonic_ns
from typing import Any

from ..ipc.cpu_meter import CpuMeter
from ..ipc.wire import READ_SIZE, FrameDecoder, Message, encode_to_server, shortened
from . import messages
from .driver import Driver, Event, Refused
from .steps import encode_step


def serve(connection: socket.socket) -> None:
    """Load the engine that the first message names and run it until STOP or the end of the connection."""
    decoder = FrameDecoder()
    backlog: list[Message] = []
    while not backlog:
        data = connection.recv(READ_SIZE)
        if not data:
            return
        backlog += [message for message, _ in decoder.feed(data)]
    _, name, options = backlog.pop(0)
    module = import_module(f"conch_child.engine.{name}.driver")
    if hasattr(module, "serve"):  # an engine that runs on asyncio
        module.serve(connection, decoder, backlog, options)
        return

    def log(level: int, text: str) -> None:
        connection.sendall(encode_to_server((messages.LOG, level, shortened(text))))

    driver: Driver = module.driver(log)
    try:
        info = driver.load(options)
    except Refused as refused:
        connection.sendall(encode_to_server((messages.LOADED, shortened(refused.text), {})))
        return
    except Exception as error:
        log(messages.ERROR, traceback.format_exc().rstrip())
        text = shortened(f"{type(error).__name__}: {error}")
        connection.sendall(encode_to_server((messages.LOADED, text, {})))
        return
    connection.sendall(encode_to_server((messages.LOADED, "", info)))
    _StepLoop(connection, decoder, driver).run(backlog)


class _StepLoop:
    """Runs a driver's steps and handles the server's messages between them."""

    def __init__(self, connection: socket.socket, decoder: FrameDecoder, driver: Driver) -> None:
        self._connection = connection
        self._decoder = decoder
        self._driver = driver
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._meter = CpuMeter()
        self._refusals: list[Event] = []
        self._changed = False  # whether refusals or aborts require a STEP message without a step
        self._last_stats = (0, 0, 0.0, 0, 0, 0)  # as sent to the server

    def run(self, backlog: list[Message]) -> None:
        """Run until STOP or the end of the connection."""
        running = all(self._handle(message) for message in backlog)
        while running:
            if self._changed:
                self._send_step([])
            if self._poll.poll(self._driver.wait_ms):
                running = self._read_messages()
            if running and self._driver.wait_ms == 0:
                began = monotonic_ns()
                events = self._driver.step()
                ended = monotonic_ns()
                self._send_step(events, (began, ended, *self._meter.used(ended - began)[:2]))

    def _read_messages(self) -> bool:
        while True:
            try:
                data = self._connection.recv(READ_SIZE, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return True
            if not data:
                return False
            for message, _ in self._decoder.feed(data):
                if not self._handle(message):
                    return False

    def _handle(self, message: Message) -> bool:
        kind = message[0]
        if kind == messages.GENERATE:
            self._add(message)
        elif kind == messages.ABORT:
            self._driver.abort(message[1])
            self._changed = True
        elif kind == messages.ADAPTER:
            self._set_adapter(*message[1:])
        return bool(kind != messages.STOP)

    def _set_adapter(self, key: int, name: str, path: str) -> None:
        code, text = 0, ""
        try:
            self._driver.set_adapter(name, path)
        except Refused as refused:
            code, text = refused.code, refused.text
        except Exception as error:
            code, text = messages.INTERNAL, f"{type(error).__name__}: {error}"
        self._connection.sendall(encode_to_server((messages.ADAPTER_SET, key, code, shortened(text))))

    def _add(self, message: Message) -> None:
        _, key, prompt, params, adapter, _ = message  # drivers support no priorities
        end: tuple[Any, ...] | None
        try:
            self._driver.add(key, prompt, params, adapter)
        except Refused as refused:
            end = (refused.code, refused.text)
        except Exception as error:  # one request's failure must not end the others
            end = (messages.INTERNAL, f"{type(error).__name__}: {error}")
        else:
            return
        self._refusals.append((key, (), end))
        self._changed = True

    def _send_step(self, events: list[Event], times: tuple[int, ...] = ()) -> None:
        events = [*self._refusals, *events]
        self._refusals.clear()
        self._changed = False
        stats = self._driver.stats()
        if events or stats != self._last_stats:
            self._last_stats = stats
            frames, refused = encode_step(events, stats, times)
            self._connection.sendall(frames)
            for key in refused:
                self._driver.abort(key)
