"""One HTTP/1.1 connection: bytes to requests, answers to bytes, in order.

Requests that arrive before their predecessor is answered wait, parsed, and while any waits nothing more is read. So
answers cannot overtake each other, and a client cannot make the server hold more than one read's worth of requests.
"""

import asyncio
import logging
import time
from collections import deque
from typing import cast

from conch.frontends.body_budget import UNCHARGED_BYTES
from conch.frontends.http.body_receiver import BodyReceiver
from conch.frontends.http.head_cache import HeadCache
from conch.frontends.http.message import HttpRefusal, HttpRequest, error_in_json, no_memory
from conch.frontends.http.owner import HttpConnectionOwner
from conch.frontends.http.reply import HttpReply
from conch.frontends.http.request_reader import RequestReader
from conch.tensor import Buffer

_log = logging.getLogger(__name__)

# What is given to the parser at a time.
_SLICE_BYTES = 16_384
# How long a client that was refused may go on sending before the connection is closed over it. Closing at once would
# make its system throw away the refusal.
_LINGER_S = 3.0
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class HttpConnection:
    """The protocol object of one client. Belongs to the event loop's thread."""

    def __init__(self, owner: HttpConnectionOwner) -> None:
        self._owner = owner
        self._limits = owner.limits
        self._transport: asyncio.Transport
        self._reader = RequestReader(owner, self)
        self._repeated = HeadCache()
        self._receiver: BodyReceiver | None = None
        # What was read and is not parsed yet; while there is any, nothing is read.
        self._backlog = b""
        self._resuming = False  # whether parsing the backlog is scheduled
        # Requests that are complete, the oldest first; a refusal is the last.
        self._waiting: deque[HttpRequest | HttpRefusal] = deque()
        self._advancing = False
        self._postponed = False  # whether the requests that wait are served in a later turn
        self._reply: HttpReply | None = None
        self._reading = True
        self._writable = True
        self._drained: asyncio.Future[None] | None = None
        # Nothing more is parsed: what still comes in is thrown away.
        self._deaf = False
        self._since = owner.now  # when it became idle, began to receive a request, or turned deaf
        self._unsent = 0  # bytes that the client had not taken at the last look
        self._stuck_since = 0.0  # since when it has been so many
        # Set when the server stops: the answer that is due is the last one.
        self.ending = False
        self._charged = 0  # bytes of the request that is being answered

    @property
    def protocol(self) -> asyncio.Protocol:
        """Itself, as the event loop knows it.

        It has a protocol's methods and is no subclass: below a class that is not compiled, a compiled one is slow.
        """
        return cast("asyncio.Protocol", self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept a client."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are of no common class
        if not self._owner.opened(self):
            self._refuse(HttpRefusal(503, "this server has as many connections as it takes"))

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - why it left does not matter
        """Release all resources, and cancel the request that is being answered."""
        self._owner.closed(self)
        self._deaf = True
        self._waiting.clear()
        self._reader.close()
        self._receiver = None
        self._backlog = b""
        self._discharge()
        self.resume_writing()
        reply, self._reply = self._reply, None
        if reply is not None:
            reply.disconnect()

    def data_received(self, data: bytes) -> None:
        """Parse what came, and start what is complete."""
        if self._deaf:
            return
        if self._backlog:
            self._backlog += data
            return
        if not self._reader.received:
            self._since = self._owner.now
            if self._reply is None and not self._waiting:
                repeated = self._repeated.recognise(data)
                if repeated is not None:
                    self._waiting.append(repeated)
                    self._advance()
                    return
        self._take(data)

    def _take(self, data: bytes) -> None:
        """Parse data in slices. What is left when the time is up, or while requests wait, is parsed later."""
        size = len(data)
        fresh = not self._reader.received
        if size <= _SLICE_BYTES:
            self._parse(data, data if fresh else b"")
            return
        position = 0
        until = self._owner.slices.until()
        while position < size and not self._deaf:
            if self._receiver is not None:
                position += self._receiver.push(data[position:])
                continue
            # A body of known size passes the parser at once.
            end = position + max(_SLICE_BYTES, self._reader.missing)
            self._parse(data[position:end], data if fresh and end >= size else b"")
            position = end
            if position < size and (self._waiting or time.monotonic() > until):
                self._backlog = data[position:]
                self._regulate()
                return

    def _resume(self) -> None:
        """Parse what was read earlier."""
        self._resuming = False
        if self._deaf or self._waiting or not self._writable:
            return
        data, self._backlog = self._backlog, b""
        self._take(data)
        self._regulate()

    def _parse(self, data: bytes, whole: bytes) -> None:
        """Parse a slice; `whole` is all that was read between two requests, if this is the end of it."""
        reader = self._reader
        reader.feed(data)
        if whole and len(self._waiting) == 1 and not reader.received and not self._deaf:
            request = self._waiting[0]
            if isinstance(request, HttpRequest):
                self._repeated.learn(whole, request)
        if reader.in_place and not self._deaf:
            self._receive_in_place()
        if self._waiting:
            self._advance()

    def eof_received(self) -> bool:
        """Close, since a client that closes its side has gone; but one that announced it waits for its answer."""
        return self._reply is not None and self._reply.last

    # Called by the reader.

    def complete(self, request: HttpRequest) -> None:
        """Put a request behind those that came before it."""
        self._waiting.append(request)

    def take_back(self) -> HttpRequest:
        """Return the request that is the last in the queue."""
        return cast("HttpRequest", self._waiting.pop())

    def refuse(self, refusal: HttpRefusal) -> None:
        """Take nothing more from this client; the refusal follows the answers that are due."""
        if self._deaf:
            return
        self._deaf = True
        self._reader.drop()
        if self._receiver is not None:
            self._receiver = None
            self._switch_to(self.protocol)
        self._waiting.append(refusal)

    def evict(self) -> None:
        """Refuse the request that is coming in: others need the memory."""
        self.refuse(no_memory())
        self._advance()

    def expected(self) -> None:
        """Let the client send the body, if that is what it waits for."""
        if self._reply is None:
            self._transport.write(_CONTINUE)

    def _receive_in_place(self) -> None:
        """Have the rest of an announced body written to where it belongs."""
        try:
            self._receiver = self._reader.receiver(self.protocol, self._received_part)
        except HttpRefusal as refusal:
            self.refuse(refusal)
        else:
            self._switch_to(self._receiver)

    def _received_part(self, position: int) -> None:
        """Go on when a body that is received in place is complete."""
        try:
            if not self._reader.received_in_place(position):
                return
        except HttpRefusal as refusal:
            self.refuse(refusal)
        else:
            self._receiver = None
            self._switch_to(self.protocol)
        self._advance()

    def _discharge(self) -> None:
        """Return what the request that was answered is charged."""
        if self._charged:
            self._owner.budget.give(self._charged)
            self._charged = 0

    def _switch_to(self, protocol: asyncio.BaseProtocol) -> None:
        if self._transport.is_closing():
            return
        # How data are delivered is settled when reading starts.
        self._transport.pause_reading()
        self._transport.set_protocol(protocol)
        if self._reading:
            self._transport.resume_reading()

    # Answering.

    def _advance(self) -> None:
        """Answer what waits, as far as answers come at once and one slice of time allows."""
        if self._advancing or self._postponed:
            return
        self._advancing = True
        until = 0.0
        while self._waiting and self._reply is None and self._writable:
            if until and time.monotonic() > until:
                self._postponed = True
                self._owner.slices.postpone(self._resume_advancing)
                break
            request = self._waiting.popleft()
            if isinstance(request, HttpRefusal):
                self._refuse(request)
                break
            reply = self._reply = HttpReply(self, request)
            size = len(request.body)
            if size > UNCHARGED_BYTES and not self._charge_answer(request.body, size):
                reply.send(503, *no_memory().content())
                continue
            try:
                self._owner.handler(request, reply)
            except Exception:
                _log.exception("handling %r failed", request)
                if reply.begun:
                    self.abort()
                else:
                    reply.send(500, *error_in_json("internal error"))
            if self._waiting and not until:  # pipelined
                until = self._owner.slices.until()
        self._advancing = False
        if self._waiting or not self._reading:
            self._regulate()

    def _resume_advancing(self) -> None:
        """Answer what the last slice has left."""
        self._postponed = False
        self._advance()

    def _charge_answer(self, body: Buffer, size: int) -> bool:
        """Charge a complete body until it is answered, unless it is charged until it is freed; False for no room."""
        if not isinstance(body, memoryview):
            if not self._owner.budget.take(size):
                return False
            self._charged = size
        return True

    def finished(self, keep_alive: bool) -> None:
        """Hear from a reply that it is complete."""
        self._reply = None
        self._discharge()
        self._since = self._owner.now
        if not keep_alive:
            self._close()
        elif self._waiting:
            self._advance()

    def write(self, data: Buffer) -> None:
        """Send one buffer."""
        self._transport.write(data)

    def write_parts(self, parts: list[Buffer]) -> None:
        """Send several buffers without copying them together."""
        self._transport.writelines(parts)

    @property
    def writable(self) -> bool:
        """Whether the client keeps up with what is written."""
        return self._writable

    async def drained(self) -> None:
        """Wait until the client has taken enough of what was written, or has gone."""
        if self._writable:
            return
        if self._drained is None:
            self._drained = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._drained)

    def pause_writing(self) -> None:
        """Hear that the client reads more slowly than it is answered: take no more from it either."""
        self._writable = False
        self._regulate()

    def resume_writing(self) -> None:
        """Hear that it has caught up."""
        self._writable = True
        drained, self._drained = self._drained, None
        if drained is not None:
            drained.set_result(None)
        self._advance()

    def _regulate(self) -> None:
        """Read only if there is nothing to catch up with."""
        wanted = self._writable and not self._waiting
        if wanted and self._backlog:
            wanted = False
            if not self._resuming and not self._deaf:
                self._resuming = True
                asyncio.get_running_loop().call_soon(self._resume)
        if wanted == self._reading or self._transport.is_closing():
            return
        self._reading = wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _refuse(self, refusal: HttpRefusal) -> None:
        self._deaf = True
        self._since = self._owner.now
        self._transport.write(refusal.answer())
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def _close(self) -> None:
        """Close when everything written has gone out."""
        self._deaf = True
        self._waiting.clear()
        self._reader.drop()
        self._backlog = b""
        self._transport.close()

    # Called by the server.

    def finish(self) -> None:
        """Close, at once if the connection is idle, else after the answer that is due."""
        self.ending = True
        if self._reply is None and not self._waiting and not self._reader.received and not self._backlog:
            self._close()

    def abort(self) -> None:
        """Close without regard to what is going on."""
        self._transport.abort()

    def sweep(self) -> None:
        """End what takes too long. Called every second or so."""
        now, limits = self._owner.now, self._limits
        unsent = self._transport.get_write_buffer_size()
        if unsent != self._unsent:
            self._unsent = unsent
            self._stuck_since = self._since = now
        waited = now - self._since
        if unsent:
            if now - self._stuck_since > limits.stalled_write_s:
                self._transport.abort()
        elif self._reply is not None or self._waiting:
            return
        elif self._deaf:
            if waited > _LINGER_S:
                self._transport.abort()
        elif self._reader.received:
            received = self._receiver.position if self._receiver is not None else self._reader.received
            if waited > limits.receive_grace_s + received / limits.receive_bytes_per_s:
                self._refuse(HttpRefusal(408, f"request not complete after {waited:.0f} s"))
        elif waited > limits.idle_s:
            self._close()
