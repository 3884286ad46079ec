"""One HTTP/1.1 connection: bytes to requests, answers to bytes, in order.

Requests that arrive before their predecessor is answered wait, parsed, and while any waits nothing more is read. So
answers cannot overtake each other, and a client cannot make the server hold more than one read's worth of requests.
"""

import asyncio
import logging
from collections import deque
from typing import cast

import httptools

from conch.frontends.http_body import BodyReceiver
from conch.frontends.http_message import HttpRefusal, HttpRequest, error_in_json, request_path
from conch.frontends.http_owner import ConnectionOwner
from conch.frontends.http_repeat import RepeatedHead
from conch.frontends.http_reply import HttpReply
from conch.tensor import Buffer

_log = logging.getLogger(__name__)

# Above this size the rest of a body is received in place instead of passing through the parser.
_IN_PLACE_BYTES = 65_536
# How long a client that was refused may go on sending before the connection is closed over it. Closing at once would
# make its system throw away the refusal.
_LINGER_S = 3.0
# Of a head that has not come whole, method, version and ends of lines cannot be told from what counts: at most so many.
_UNCOUNTED_BYTES = 32
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class HttpConnection:
    """The protocol object of one client. Belongs to the event loop's thread."""

    def __init__(self, owner: ConnectionOwner) -> None:
        self._owner = owner
        self._limits = owner.limits
        self._transport: asyncio.Transport
        self._parser = httptools.HttpRequestParser(self)
        self._repeated = RepeatedHead()
        self._receiver: BodyReceiver | None = None
        # Requests that are complete, the oldest first; a refusal is the last.
        self._waiting: deque[HttpRequest | HttpRefusal] = deque()
        self._advancing = False
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
        # The request that is coming in.
        self._url = b""
        self._fields: list[tuple[bytes, bytes]] = []
        self._request: HttpRequest | None = None  # known from the end of its head to the end of its body
        self._body: Buffer = b""
        self._body_size = 0  # as announced
        self._body_limit = 0
        self._received = 0  # bytes of the whole request, but for those read along with the one before
        self._read = 0  # bytes of the last read
        self._barren = 0  # bytes that came late and held nothing of its body

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
        """Let go of everything; a request that is being answered is told."""
        self._owner.closed(self)
        self._deaf = True
        self._waiting.clear()
        self.resume_writing()
        reply, self._reply = self._reply, None
        if reply is not None:
            reply.disconnect()

    def data_received(self, data: bytes) -> None:
        """Parse what came, and start what is complete."""
        if self._deaf:
            return
        if not self._received:
            self._since = self._owner.now
            if self._reply is None and not self._waiting:
                repeated = self._repeated.recognise(data)
                if repeated is not None:
                    self._waiting.append(repeated)
                    self._advance()
                    return
        self._read = len(data)
        self._received += self._read
        self._parse(data)
        if self._body_size > _IN_PLACE_BYTES and self._receiver is None and not self._deaf:
            self._receive_in_place()
        if self._waiting:
            self._advance()

    def _parse(self, data: bytes) -> None:
        whole = self._received == len(data)  # nothing came before
        try:
            size = len(self._body)
            self._parser.feed_data(data)
            if self._received > self._limits.head_bytes and len(self._body) == size:
                self._barren += len(data)
                self._check_size(self._barren - _UNCOUNTED_BYTES)
        except httptools.HttpParserUpgrade as upgrade:
            self._decline_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            self._give_up(cause if isinstance(cause, HttpRefusal) else HttpRefusal.malformed(cause or error))
        except httptools.HttpParserError as error:
            self._give_up(HttpRefusal.malformed(error))
        except HttpRefusal as refusal:
            self._give_up(refusal)
        if whole and len(self._waiting) == 1 and not self._received and not self._deaf:
            request = self._waiting[0]
            if isinstance(request, HttpRequest):
                self._repeated.learn(data, request)

    def eof_received(self) -> bool:
        """Close, since a client that closes its side has gone; but one that announced it waits for its answer."""
        return self._reply is not None and self._reply.last

    # Called by the parser.

    def on_message_begin(self) -> None:
        """Note that a request has begun, even if all that has come of it was read along with the one before."""
        self._received = self._received or 1

    def on_url(self, url: bytes) -> None:
        """Take a piece of the target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header field. Trailers, which nobody wants, are dropped."""
        if self._request is None:
            self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        """Decide, before any of the body is taken, whether and how it is."""
        fields = self._fields
        if len(fields) > self._limits.head_fields:
            raise HttpRefusal(431, f"more than {self._limits.head_fields} header fields")
        if self._received > self._limits.head_bytes or self._read > self._limits.head_bytes:
            # What was read may hold more than the head. Each field has a colon, a space and an end of line beside it.
            self._check_size(len(self._url) + sum(len(name) + len(value) + 4 for name, value in fields))
        parser = self._parser
        request = self._request = HttpRequest(parser.get_method(), request_path(self._url), fields)
        self._fields = []
        self._url = b""
        headers = request.headers
        if not parser.should_keep_alive() or b"connection" in headers:
            request.old_version = parser.get_http_version() == "1.0"
            request.keep_alive = parser.should_keep_alive() and not request.old_version
        self._body_limit = self._limits.body_bytes
        size = headers.get(b"content-length")
        if size is not None:
            self._expect_body(request, int(size))
        if b"expect" in headers and headers[b"expect"].lower() == b"100-continue" and self._reply is None:
            self._transport.write(_CONTINUE)

    def on_body(self, data: bytes) -> None:
        """Take a piece of the body."""
        body = self._body
        if not body:
            self._body = data
        elif isinstance(body, bytearray):
            body += data
        else:
            self._body = bytearray(body) + data
        if len(self._body) > self._body_limit and not self._body_size:
            assert self._request is not None
            self._allow_body(self._request, len(self._body))

    def on_message_complete(self) -> None:
        """Put a request that is complete behind those that came before it."""
        request = self._request
        assert request is not None
        request.body = self._body
        self._request = None
        self._body = b""
        self._body_size = 0
        self._received = self._barren = 0
        self._waiting.append(request)

    # Receiving.

    def _check_size(self, size: int) -> None:
        """Refuse a head that is too large, or as much of what is neither head nor body."""
        if size > self._limits.head_bytes:
            raise HttpRefusal(431, f"request line and header fields exceed {self._limits.head_bytes} bytes")

    def _expect_body(self, request: HttpRequest, size: int) -> None:
        if size > self._body_limit:
            self._allow_body(request, size)
        self._body_size = size

    def _allow_body(self, request: HttpRequest, size: int) -> None:
        """Ask the handler whether this request may have a body larger than others."""
        default = self._limits.body_bytes
        limit = default if self._owner.body_limit is None else self._owner.body_limit(request)
        if size > limit:
            setting = " set by --http-max-input-size" if limit == default else ""
            raise HttpRefusal(400, f"request body of {size} bytes exceeds the maximum of {limit} bytes{setting}")
        self._body_limit = limit

    def _receive_in_place(self) -> None:
        """Have the rest of an announced body written to where it belongs."""
        try:
            self._receiver = BodyReceiver(self.protocol, self._body, self._body_size, self._received_in_place)
        except MemoryError:
            self._give_up(HttpRefusal(503, f"no memory for a request body of {self._body_size} bytes"))
        else:
            self._body = self._receiver.body
            self._switch_to(self._receiver)

    def _received_in_place(self) -> None:
        self._receiver = None
        # The old parser still waits for the body.
        self._parser = httptools.HttpRequestParser(self)
        self._switch_to(self.protocol)
        if not self._deaf:
            self.on_message_complete()
            self._advance()

    def _switch_to(self, protocol: asyncio.BaseProtocol) -> None:
        # How data are delivered is settled when reading starts.
        self._transport.pause_reading()
        self._transport.set_protocol(protocol)
        if self._reading:
            self._transport.resume_reading()

    def _decline_upgrade(self, rest: bytes) -> None:
        """Go on in HTTP/1.1. The parser has ended the request at its head; its body, if any, is in the rest."""
        request = self._waiting.pop()
        assert isinstance(request, HttpRequest)
        headers = request.headers
        if request.method == b"CONNECT" or b"transfer-encoding" in headers:
            self._give_up(HttpRefusal(400, "this server does not switch protocols"))
            return
        self._parser = httptools.HttpRequestParser(self)
        self._request = request
        self._body_size = size = int(headers.get(b"content-length", b"0"))
        self._body = rest[:size]
        if len(self._body) < size:
            self._received = len(rest) or 1
            self._receive_in_place()
            return
        self.on_message_complete()
        if rest[size:]:
            # Nothing can follow before the answer tells by which protocol.
            self._give_up(HttpRefusal(400, "data behind a request to switch protocols"))

    def _give_up(self, refusal: HttpRefusal) -> None:
        """Take nothing more from this client; the refusal follows the answers that are due."""
        self._deaf = True
        self._request = None
        self._waiting.append(refusal)

    # Answering.

    def _advance(self) -> None:
        """Answer what waits, as far as answers come at once."""
        if self._advancing:
            return
        self._advancing = True
        while self._waiting and self._reply is None and self._writable:
            request = self._waiting.popleft()
            if isinstance(request, HttpRefusal):
                self._refuse(request)
                break
            reply = self._reply = HttpReply(self, request)
            try:
                self._owner.handler(request, reply)
            except Exception:
                _log.exception("handling %r failed", request)
                if reply.begun:
                    self.abort()
                else:
                    reply.send(500, *error_in_json("internal error"))
        self._advancing = False
        if self._waiting or not self._reading:
            self._regulate()

    def finished(self, keep_alive: bool) -> None:
        """Hear from a reply that it is complete."""
        self._reply = None
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
        self._transport.close()

    # Called by the server.

    def finish(self) -> None:
        """Close, at once if the connection is idle, else after the answer that is due."""
        self.ending = True
        if self._reply is None and not self._waiting and not self._received:
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
        elif self._received:
            received = self._receiver.position if self._receiver is not None else self._received
            if waited > limits.receive_grace_s + received / limits.receive_bytes_per_s:
                self._refuse(HttpRefusal(408, f"request not complete after {waited:.0f} s"))
        elif waited > limits.idle_s:
            self._close()
