"""The loop of an engine's process: orders in, steps, one message out for each step."""

from __future__ import annotations

import select
import socket
import traceback
from importlib import import_module
from typing import Any

from ..ipc.wire import READ_SIZE, FrameDecoder, Message, encode
from . import messages
from .driver import Driver, Event, Refused


def serve(connection: socket.socket) -> None:
    """Load the engine that the first message names and run it until the server ends the connection or says STOP."""
    decoder = FrameDecoder()
    backlog: list[Message] = []
    while not backlog:
        data = connection.recv(READ_SIZE)
        if not data:
            return
        backlog += [message for message, _ in decoder.feed(data)]
    _, name, options = backlog.pop(0)
    module = import_module(f"conch_child.engine.{name}")
    if hasattr(module, "serve"):  # an engine with a loop of its own
        module.serve(connection, decoder, backlog, options)
        return

    def log(level: int, text: str) -> None:
        connection.sendall(encode((messages.LOG, level, text)))

    driver: Driver = module.driver(log)
    try:
        info = driver.load(options)
    except Refused as refused:
        connection.sendall(encode((messages.LOADED, refused.text, {})))
        return
    except Exception as error:
        log(messages.ERROR, traceback.format_exc().rstrip())
        connection.sendall(encode((messages.LOADED, f"{type(error).__name__}: {error}", {})))
        return
    connection.sendall(encode((messages.LOADED, "", info)))
    _StepLoop(connection, decoder, driver).run(backlog)


class _StepLoop:
    """Takes orders between two steps."""

    def __init__(self, connection: socket.socket, decoder: FrameDecoder, driver: Driver) -> None:
        self._connection = connection
        self._decoder = decoder
        self._driver = driver
        self._arrivals = select.poll()
        self._arrivals.register(connection, select.POLLIN)
        self._refusals: list[Event] = []
        self._changed = False  # whether the server is to be told of what no step brings
        self._figures = (0, 0, 0.0, 0, 0, 0)  # as the server knows them

    def run(self, backlog: list[Message]) -> None:
        """Run until the server has gone or wants the end."""
        going = all(self._obey(message) for message in backlog)
        while going:
            if self._changed:
                self._tell([])
            if self._arrivals.poll(self._driver.wait_ms):
                going = self._take_orders()
            if going and self._driver.wait_ms == 0:
                self._tell(self._driver.step())

    def _take_orders(self) -> bool:
        while True:
            try:
                data = self._connection.recv(READ_SIZE, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return True
            if not data:
                return False
            for message, _ in self._decoder.feed(data):
                if not self._obey(message):
                    return False

    def _obey(self, message: Message) -> bool:
        kind = message[0]
        if kind == messages.GENERATE:
            self._add(message)
        elif kind == messages.ABORT:
            self._driver.abort(message[1])
            self._changed = True
        return bool(kind != messages.STOP)

    def _add(self, message: Message) -> None:
        _, key, prompt, params, adapter, _ = message  # no engine that is driven step by step has priorities
        end: tuple[Any, ...] | None
        try:
            self._driver.add(key, prompt, params, adapter)
        except Refused as refused:
            end = (refused.code, refused.text)
        except Exception as error:  # what a library says of one request must not end the others
            end = (messages.INTERNAL, f"{type(error).__name__}: {error}")
        else:
            return
        self._refusals.append((key, (), end))
        self._changed = True

    def _tell(self, events: list[Event]) -> None:
        events = [*self._refusals, *events]
        self._refusals.clear()
        self._changed = False
        figures = self._driver.stats()
        if events or figures != self._figures:
            self._figures = figures
            self._connection.sendall(encode((messages.STEP, events, figures)))
