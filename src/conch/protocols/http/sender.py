# Compiled by mypyc in wheels.
"""The sending side of one HTTP/1.1 connection: passes requests to the handler one by one, and writes the answers."""

import asyncio
import logging
import time
from collections import deque
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

from conch.domain.tensor import Buffer
from conch.protocols.connections.body_budget import UNCHARGED_BYTES
from conch.protocols.connections.listener import peer_address
from conch.protocols.connections.loop_budget import LoopBudget
from conch.protocols.http.message import HttpRefusal, HttpRequest, no_memory
from conch.protocols.http.reply import HttpReply, ReplyChannel
from conch.protocols.http.server_context import Handler, ServerContext

_log: Final = logging.getLogger(__name__)

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class RequestSource(Protocol):
    """The receiver, as the sender sees it."""

    def regulate(self) -> None:
        """Resume or pause reading, depending on the sender's queue."""

    def stop(self) -> None:
        """Discard requests that are not being answered, and further data."""


class _NoSource:
    """The source of a sender that is closed."""

    def regulate(self) -> None:
        """No-op."""

    def stop(self) -> None:
        """No-op."""


_NO_SOURCE: Final = _NoSource()


class HttpSender(ReplyChannel):
    """Answers requests in the order in which they came. Belongs to the event loop's thread."""

    def __init__(self, context: ServerContext) -> None:
        super().__init__()
        self._context = context
        self._traffic = context.traffic
        self.ending = context.ending
        self._transport: asyncio.Transport
        self._source: RequestSource
        # Requests that are complete, the oldest first; a refusal is the last.
        self.waiting: deque[HttpRequest | HttpRefusal] = deque()
        self._reply: HttpReply | None = None  # to the request that is being answered
        self._charged = 0  # bytes of that request
        self._advancing = False
        self._postponed = False  # whether the requests that wait are served in a later turn of the loop
        self._drained: asyncio.Future[None] | None = None
        self.since = context.clock.now  # when an answer was completed, or the client was last seen to take some of it
        self._unsent_bytes = 0  # that the client had not taken at the last look
        self._stalled_since = 0.0  # since when the number has not changed

    def connect(self, transport: asyncio.Transport, source: RequestSource) -> None:
        """Begin with a connection."""
        self._transport = transport
        self._source = source

    @property
    def peer(self) -> str:
        return peer_address(self._transport)

    @property
    def busy(self) -> bool:
        """Whether any request is being answered or waits for that."""
        return self._reply is not None or bool(self.waiting)

    @property
    def answering_last(self) -> bool:
        """Whether a request is being answered after which the client sends no other."""
        return self._reply is not None and self._reply.last

    def advance(self) -> None:
        """Answer the queued requests, as far as answers are immediate and one slice of time allows."""
        if self._advancing or self._postponed:
            return
        self._advancing = True
        until = 0.0
        while self.waiting and self._reply is None and self.writable:
            if until and time.monotonic() > until:
                self._postponed = True
                self._context.parse_budget.postpone(self._resume_advancing)
                break
            request = self.waiting.popleft()
            if isinstance(request, HttpRefusal):
                self._refuse(request)
                break
            reply = self._reply = HttpReply(self, request)
            size = len(request.body)
            if size > UNCHARGED_BYTES and not self._charge(request.body, size):
                reply.send(503, *no_memory().content())
                continue
            handle(self._context.handler, request, reply)
            if self.waiting and not until:  # pipelined
                until = self._context.parse_budget.until()
        self._advancing = False

    def resume(self) -> None:
        """Resume answering: the client has taken enough of what was written."""
        self.writable = True
        self.log_drained()
        drained, self._drained = self._drained, None
        if drained is not None:
            drained.set_result(None)
        self._continue()

    def send_continue(self) -> None:
        """Send 100 Continue for an announced body, unless the client waits for another answer first."""
        if self._reply is None:
            self.write(_CONTINUE)

    def stalled_s(self, now: float) -> float | None:
        """Return for how many seconds the client has taken nothing of what was written; None if all has been sent."""
        unsent = self._transport.get_write_buffer_size()
        if unsent != self._unsent_bytes:
            self._unsent_bytes = unsent
            self._stalled_since = self.since = now
        return now - self._stalled_since if unsent else None

    def close(self) -> None:
        """Release all resources, and cancel the request that is being answered."""
        self.waiting.clear()
        self._discharge()
        self.log_drained(closed=True)
        self.resume()
        self._source = _NO_SOURCE
        reply, self._reply = self._reply, None
        if reply is not None:
            reply.disconnect()

    # Called by the reply.

    def write(self, data: Buffer) -> None:
        self._traffic.sent_bytes += len(data)
        self._transport.write(data)

    def write_parts(self, parts: list[Buffer]) -> None:
        for part in parts:
            self._traffic.sent_bytes += len(part)
        self._transport.writelines(parts)

    def finished(self, keep_alive: bool) -> None:
        self._reply = None
        self._discharge()
        self.since = self._context.clock.now
        if not keep_alive:
            self._source.stop()
            self._transport.close()
        elif self.waiting and not self._advancing:
            self._continue()

    def count_status(self, status: int) -> None:
        self._traffic.count_status(status)

    def abort(self) -> None:
        self._transport.abort()

    async def drained(self) -> None:
        if self.writable:
            return
        if self._drained is None:
            self._drained = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._drained)

    def _continue(self) -> None:
        self.advance()
        self._source.regulate()

    def _resume_advancing(self) -> None:
        """Continue after a slice of time."""
        self._postponed = False
        self._continue()

    def _refuse(self, refusal: HttpRefusal) -> None:
        self.since = asyncio.get_running_loop().time()  # that of the sweeps is old after a stall
        self._traffic.count_status(refusal.status)
        self.write(refusal.answer())
        if self._transport.can_write_eof():
            with suppress(OSError):  # the client has disconnected, and the loop has not noticed it
                self._transport.write_eof()

    def _charge(self, body: Buffer, size: int) -> bool:
        """Charge a complete body until it is answered, unless it is charged until it is freed; False for no room."""
        if not isinstance(body, memoryview):
            if not self._context.budget.charge(size):
                return False
            self._charged = size
        return True

    def _discharge(self) -> None:
        """Return what the request that was answered is charged."""
        if self._charged:
            self._context.budget.discharge(self._charged)
            self._charged = 0


def handle(handler: Handler, request: HttpRequest, reply: HttpReply) -> None:
    """Call a handler. What it raises is logged and answered with 500."""
    try:
        handler(request, reply)
    except Exception:
        _log.exception('HTTP request "%r" failed unexpectedly', request)
        reply.fail()


class BudgetedHandler:
    """Calls another handler, at once or, when this turn of the event loop is used up, in a later one."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._loop_budget = LoopBudget()

    def __call__(self, request: HttpRequest, reply: HttpReply) -> None:
        """Answer one request."""
        if self._loop_budget.acquire():
            self._handler(request, reply)
        else:
            request.body_done = request.body_done or time.monotonic_ns()
            self._loop_budget.postpone(partial(self._handle_later, request, reply))

    def _handle_later(self, request: HttpRequest, reply: HttpReply) -> None:
        if reply.open:
            handle(self._handler, request, reply)
