# Compiled by mypyc in wheels.
"""The receiving side of one HTTP/1.1 connection: parses within the event loop's budget, and paces reading.

While a complete request waits for the answer to its predecessor, nothing more is read. So answers cannot overtake each
other, and a client cannot make the server hold more than one read's worth of requests.
"""

import asyncio
import time
from typing import Final, cast

from conch.protocols.http.body_receiver import BodyReceiver
from conch.protocols.http.message import HttpRefusal, HttpRequest, no_memory
from conch.protocols.http.request_reader import HeadCache, RequestReader
from conch.protocols.http.sender import HttpSender
from conch.protocols.http.server_context import ServerContext

# What is given to the parser at a time.
_SLICE_BYTES: Final = 16_384
_NO_BODY: Final = memoryview(b"")


class HttpReceiver:
    """Turns data into requests for the sender. Belongs to the event loop's thread."""

    __deletable__ = ("_protocol",)

    def __init__(self, context: ServerContext, sender: HttpSender) -> None:
        self._context = context
        self._sender = sender
        self._transport: asyncio.Transport
        self._protocol: asyncio.Protocol
        self._reader = RequestReader(context, self)
        self._head_cache = HeadCache()
        self._body_receiver: BodyReceiver | None = None  # in the protocol's place while a body is received in place
        self._backlog = b""  # read and not parsed; while there is any, nothing is read
        self._resuming = False  # whether parsing the backlog is scheduled
        self._reading = True
        self.stopped = False  # nothing more is parsed: further data are discarded
        # When the connection opened, the client began to send the last request, or sent data that were discarded.
        self.since = context.clock.now

    def connect(self, transport: asyncio.Transport, protocol: asyncio.Protocol) -> None:
        """Begin with a connection. `protocol` gets the transport's events while no body is received in place."""
        self._transport = transport
        self._protocol = protocol

    @property
    def received_bytes(self) -> int:
        """Bytes received of an incomplete request; 0 between requests."""
        return self._body_receiver.position if self._body_receiver is not None else self._reader.received

    @property
    def receiving(self) -> bool:
        """Whether part of a request has come."""
        return bool(self._reader.received or self._backlog)

    def receive(self, data: bytes) -> None:
        """Parse data. What does not fit the time of one slice is parsed later."""
        if self.stopped:
            self.since = asyncio.get_running_loop().time()
            return
        if self._backlog:
            self._backlog += data
            return
        if not self._reader.received:
            self.since = self._context.clock.now
            if not self._sender.busy:
                repeated = self._head_cache.recognise(data)
                if repeated is not None:
                    self._sender.waiting.append(repeated)
                    self._advance()
                    return
        self._take(data)

    def regulate(self) -> None:
        """Read only while nothing is left to parse, to answer or to send."""
        reading = self._sender.writable and not self._sender.waiting
        if reading and self._backlog:
            reading = False
            if not self._resuming and not self.stopped:
                self._resuming = True
                asyncio.get_running_loop().call_soon(self._resume)
        if reading == self._reading or self._transport.is_closing():
            return
        self._reading = reading
        if reading:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def refuse_now(self, refusal: HttpRefusal) -> None:
        """Refuse outside of parsing: as `refuse`, and resume answering."""
        self.refuse(refusal)
        self._advance()

    def stop(self) -> None:
        """Discard requests that are not being answered, and further data."""
        self.stopped = True
        self._sender.waiting.clear()
        self._reader.drop()
        self._backlog = b""

    def close(self) -> None:
        """Release all resources."""
        self.stop()
        self._reader.close()
        self._drop_body_receiver()
        del self._protocol

    # Called by the reader.

    def complete(self, request: HttpRequest) -> None:
        """Queue a request behind those that came before it."""
        self._sender.waiting.append(request)

    def take_back(self) -> HttpRequest:
        """Return the request that is the last in the queue."""
        return cast("HttpRequest", self._sender.waiting.pop())

    def refuse(self, refusal: HttpRefusal) -> None:
        """Read nothing more from this client; the refusal follows the answers that are due."""
        if self.stopped:
            return
        self.stopped = True
        self._reader.drop()
        if self._body_receiver is not None:
            self._drop_body_receiver()
            self._switch_to(self._protocol)
        self._sender.waiting.append(refusal)

    def evict(self) -> None:
        """Refuse the request that is coming in: other requests need the memory."""
        self.refuse_now(no_memory())

    def send_continue(self) -> None:
        """Request the body that the client announced by `Expect: 100-continue`."""
        self._sender.send_continue()

    def _take(self, data: bytes) -> None:
        """Parse data in slices. What is left when the time is up, or while requests wait, is parsed later."""
        size = len(data)
        fresh = not self._reader.received
        if size <= _SLICE_BYTES and self._body_receiver is None:
            self._parse(data, data if fresh else b"")
            return
        position = 0
        until = self._context.parse_budget.until()
        while position < size and not self.stopped:
            if self._body_receiver is not None:
                position += self._body_receiver.push(data[position:])
                continue
            # A body of known size passes the parser at once.
            end = position + max(_SLICE_BYTES, self._reader.missing)
            self._parse(data[position:end], data if fresh and end >= size else b"")
            position = end
            if position < size and (self._sender.waiting or time.monotonic() > until):
                self._backlog = data[position:]
                self.regulate()
                return

    def _resume(self) -> None:
        """Parse the backlog."""
        self._resuming = False
        if self.stopped or self._sender.waiting or not self._sender.writable:
            return
        data, self._backlog = self._backlog, b""
        self._take(data)
        self.regulate()

    def _parse(self, data: bytes, whole: bytes) -> None:
        """Parse a slice; `whole` is all that was read between two requests, if this is the end of it."""
        reader = self._reader
        reader.feed(data)
        waiting = self._sender.waiting
        if whole and len(waiting) == 1 and not reader.received and not self.stopped:
            request = waiting[0]
            if isinstance(request, HttpRequest):
                self._head_cache.learn(whole, request)
        if reader.in_place and not self.stopped:
            self._receive_in_place()
        if waiting:
            self._advance()

    def _advance(self) -> None:
        self._sender.advance()
        self.regulate()

    def _receive_in_place(self) -> None:
        """Receive the rest of an announced body directly into its array."""
        try:
            self._body_receiver = self._reader.receiver(self._protocol, self._received_part)
        except HttpRefusal as refusal:
            self.refuse(refusal)
        else:
            self._switch_to(self._body_receiver)

    def _received_part(self, position: int) -> None:
        """Continue when a body that is received in place is complete."""
        try:
            if not self._reader.received_in_place(position):
                return
        except HttpRefusal as refusal:
            self.refuse(refusal)
        else:
            self._drop_body_receiver()
            self._switch_to(self._protocol)
        self._advance()

    def _drop_body_receiver(self) -> None:
        """Release the body: uvloop's transport refers to the receiver until it gets another one."""
        receiver, self._body_receiver = self._body_receiver, None
        if receiver is not None:
            receiver.body = _NO_BODY

    def _switch_to(self, protocol: asyncio.BaseProtocol) -> None:
        if self._transport.is_closing():
            return
        # The transport decides how to deliver data when reading starts.
        self._transport.pause_reading()
        self._transport.set_protocol(protocol)
        if self._reading:
            self._transport.resume_reading()
