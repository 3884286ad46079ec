"""What a frontend process has the core answer: requests as they came, but for inference and generation.

The core answers requests by its own endpoints, so that each exists once; the bytes of the answer are relayed. It has
the event log, too, by which calls are explained that the process answers itself.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from conch.base.errors import ConchError, Unavailable
from conch.protocols.http.message import HttpRequest, error_in_json
from conch.protocols.http.reply import HttpReply
from conch.server.frontends.processes.link import (
    CALL,
    CANCEL,
    EXPLAIN,
    EXPLAINED,
    FORWARD,
    RAW,
    RAW_END,
    WRITABLE,
    Message,
)
from conch.server.frontends.processes.remote_models import CORE_LOST, Calls
from conch.server.frontends.processes.values import restored_error


class Forwarding:
    """Forwards requests of all ports, and unary gRPC calls."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._replies: dict[int, HttpReply] = {}
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._explained: dict[int, Callable[[str], None]] = {}
        self._draining: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._replies) + len(self._answers)

    def forward(self, port: str, request: HttpRequest, reply: HttpReply, *_: object) -> None:
        """Have the core answer a request of a port."""
        number = self._calls.number()
        link = self._calls.link
        self._replies[number] = reply
        reply.on_disconnect = partial(self._disconnected, number)
        fields = list(request.fields)
        body = link.packed(request.body)
        head = (FORWARD, number, port, request.method, request.path, request.query, fields, body)
        link.send((*head, request.keep_alive, request.old_version, reply.peer, reply.ending))

    async def call(self, path: str, message: Any) -> "EncodedMessage":
        """Have the core answer a unary gRPC call. Raises ConchError."""
        number = self._calls.number()
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        self._calls.link.send((CALL, number, path, message.SerializeToString()))
        return EncodedMessage(await answer)

    def explain(self, call: int, received: int, finish: Callable[[str], None]) -> None:
        """Have the core explain a call: see `ShortForms`."""
        number = self._calls.number()
        self._explained[number] = finish
        self._calls.link.send((EXPLAIN, number, call, received))

    def handle(self, message: Message) -> None:
        """Relay an answer of the core."""
        if message[0] == RAW:
            self._relay(message[1], message[2])
        elif message[0] == RAW_END:
            reply = self._replies.pop(message[1], None)
            if reply is not None:
                reply.relayed(message[2], aborted=message[3])
        elif message[0] == EXPLAINED:
            self._explained.pop(message[1])(message[2])
        else:
            self._answered(message[1], message[2])

    def fail(self) -> None:
        """End everything: the core has ended."""
        replies, self._replies = self._replies, {}
        for reply in replies.values():
            if reply.begun:
                reply.relayed(False, aborted=True)
            else:
                reply.send(503, *error_in_json(CORE_LOST))
        for number in list(self._answers):
            self._answers.pop(number).set_exception(Unavailable(CORE_LOST))
        for number in list(self._explained):
            self._explained.pop(number)("")

    def _relay(self, number: int, data: bytes) -> None:
        reply = self._replies.get(number)
        if reply is None:
            return
        was_writable = reply.writable
        reply.relay(data)
        if was_writable and not reply.writable:
            self._calls.link.send((WRITABLE, number, False))
            task = asyncio.ensure_future(self._drain(number, reply))
            self._draining.add(task)
            task.add_done_callback(self._draining.discard)

    async def _drain(self, number: int, reply: HttpReply) -> None:
        await reply.drained()
        self._calls.link.send((WRITABLE, number, True))

    def _answered(self, number: int, answer: Any) -> None:
        waiting = self._answers.pop(number, None)
        if waiting is None or waiting.done():
            return
        if isinstance(answer, list):
            error: ConchError = restored_error(answer[0])
            waiting.set_exception(error)
        else:
            waiting.set_result(answer)

    def _disconnected(self, number: int) -> None:
        if self._replies.pop(number, None) is not None:
            self._calls.link.send((CANCEL, number))


class EncodedMessage:
    """A protobuf message that the core has encoded."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def SerializeToString(self) -> bytes:  # noqa: N802 - as protobuf's
        """Return its bytes."""
        return self._data
