# Compiled by mypyc in wheels.
"""Parses the requests of one HTTP/1.1 connection, enforces limits, and charges the memory of bodies."""

import asyncio
import re
from collections.abc import Callable
from time import monotonic_ns
from typing import Final, Protocol

import httptools

from conch.domain.tensor import Buffer
from conch.protocols.connections.body_budget import UNCHARGED_BYTES, BodyUpload
from conch.protocols.http.body_receiver import BodyReceiver
from conch.protocols.http.message import HttpRefusal, HttpRequest, no_memory, request_path
from conch.protocols.http.server_context import ServerContext

_END_OF_HEAD: Final = b"\r\n\r\n"
# A longer head is parsed every time.
_MAX_HEAD_BYTES: Final = 4096
# Headers with which a request is more than a head and a body of known size.
_UNCACHEABLE_HEADERS = (b"transfer-encoding", b"expect", b"upgrade", b"connection")


class HeadCache:
    """The head of the last request that can be recognised."""

    __slots__ = ("_head", "_request", "_size")

    def __init__(self) -> None:
        self._head = b""
        self._size = -1  # of the whole request
        self._request: HttpRequest | None = None

    def recognise(self, data: bytes) -> HttpRequest | None:
        """Return the request if the bytes have the cached head; None if they must be parsed."""
        if len(data) != self._size or self._request is None or not data.startswith(self._head):
            return None
        return self._request.again(data[len(self._head) :])

    def learn(self, data: bytes, request: HttpRequest) -> None:
        """Cache the head of a request that was parsed from exactly these bytes."""
        end = data.find(_END_OF_HEAD, 0, _MAX_HEAD_BYTES) + len(_END_OF_HEAD)
        headers = request.headers
        if (
            end < len(_END_OF_HEAD)
            or len(data) - end != len(request.body)
            or not data[:1].isalpha()  # parsers skip empty lines before a request
            or request.old_version
            or not request.keep_alive
            or any(name in headers for name in _UNCACHEABLE_HEADERS)
        ):
            return
        self._head = data[:end]
        self._size = len(data)
        self._request = request.again(b"")


# Above this size the rest of a body is received in place instead of passing through the parser.
_IN_PLACE_BYTES: Final = 65_536
# Chunks of one body that hold anything, as in Triton.
MAX_CHUNKS: Final = 65_536
# Fields that must not be repeated: proxies and servers may use different ones of the values.
_SINGLE_FIELDS = (b"host", b"authorization", b"inference-header-content-length")
# An authority without user (RFC 9110, section 7.2): a name or an address, and perhaps a port.
_HOST: Final = re.compile(rb"(?:\[[\w:.%-]+\]|[\w.~!$&'()*+,;=%-]*)(?::[0-9]*)?", re.ASCII)
_CHUNK_SIZE: Final = re.compile(rb"\r\n([0-9A-Fa-f]{1,16})[ \t]*(?:;[^\r\n]*)?\r\n\Z")
_MAX_CHUNK_LINE_BYTES: Final = 256
# Methods whose requests have no content (RFC 9110, section 9.3): it would occupy memory for nothing.
_WITHOUT_BODY = (b"GET", b"HEAD", b"DELETE")
# Method, version and line ends do not count for the limit of a head; at most this many bytes of an incomplete one.
_UNCOUNTED_BYTES: Final = 32


class RequestSink(Protocol):
    """Receives the requests of a reader."""

    def complete(self, request: HttpRequest) -> None:
        """Handle a complete request."""

    def take_back(self) -> HttpRequest:
        """Return the last complete request, whose body is still to come."""

    def refuse(self, refusal: HttpRefusal) -> None:
        """Stop receiving; the refusal follows the answers that are due."""

    def evict(self) -> None:
        """Refuse the request that is coming in, outside of `RequestReader.feed`: other requests need the memory."""

    def send_continue(self) -> None:
        """Request the body that the client announced by `Expect: 100-continue`."""


class RequestReader:
    """Parses requests. Belongs to the event loop's thread."""

    __deletable__ = ("_sink",)

    def __init__(self, context: ServerContext, sink: RequestSink) -> None:
        self._context = context
        self._limits = context.limits
        self._sink = sink
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        # The request that is coming in.
        self._url = b""
        self._fields: list[tuple[bytes, bytes]] = []
        self._request: HttpRequest | None = None  # known from the end of its head to the end of its body
        self._body: Buffer = b""
        self._body_size = 0  # as announced
        self._body_limit = 0
        self._first_byte = 0  # when it came, monotonic ns
        self._first_read = True  # whether all that came of it was read at once
        self.received = 0  # bytes of the whole request, but for those read along with the one before
        self._read_bytes = 0  # bytes of the last read
        self._overhead_bytes = 0  # bytes after the head's limit that held nothing of its body
        self._chunks = 0
        self._after_line = False  # whether the last read ended with the end of a line
        self._chunk_bytes = -1  # that came of the chunk that is coming in; -1 between chunks
        self._upload: BodyUpload | None = None  # what its body is charged, once it has come in part
        self.in_place = False  # whether the rest of its body is to be received in place

    @property
    def missing(self) -> int:
        """Missing bytes of an announced body; 0 if none was announced."""
        return max(self._body_size - len(self._body), 0)

    def close(self) -> None:
        """Release all resources."""
        self.drop()
        # Breaks reference cycles, which garbage collection would find late, and then with many others.
        self._parser = None
        del self._sink

    def feed(self, data: bytes) -> None:
        """Parse data. Errors go to the sink as refusals."""
        self._read_bytes = len(data)
        self._first_read = False
        self.received += self._read_bytes
        parser = self._parser
        if parser is None:
            return
        try:
            size = len(self._body)
            parser.feed_data(data)
            if self._chunk_bytes >= 0:
                self._check_chunk(data)
            self._after_line = data.endswith(b"\r\n")
            if self._body:
                self._charge(len(self._body))
            if self.received > self._limits.head_bytes and len(self._body) == size:
                self._overhead_bytes += len(data)
                self._check_size(self._overhead_bytes - _UNCOUNTED_BYTES)
        except httptools.HttpParserUpgrade as upgrade:
            self._decline_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            self._sink.refuse(cause if isinstance(cause, HttpRefusal) else HttpRefusal.malformed(cause or error))
        except httptools.HttpParserError as error:
            self._sink.refuse(HttpRefusal.malformed(error))
        except HttpRefusal as refusal:
            self._sink.refuse(refusal)
        if self._body_size > _IN_PLACE_BYTES:
            self.in_place = True

    def receiver(self, connection: asyncio.Protocol, received: Callable[[int], None]) -> BodyReceiver:
        """Return the protocol that receives the rest of the body. Raises HttpRefusal."""
        self.in_place = False
        try:
            receiver = BodyReceiver(connection, self._body, self._body_size, received, self._context.traffic)
        except MemoryError:
            raise HttpRefusal(503, f"no memory for a request body of {self._body_size} bytes") from None
        self._body = receiver.body
        return receiver

    def received_in_place(self, position: int) -> bool:
        """Count the received bytes of a body in place. Returns whether it is complete. Raises HttpRefusal."""
        self._charge(position)
        if position < self._body_size:
            return False
        self._first_read = False
        # The old parser still waits for the body.
        self._parser = httptools.HttpRequestParser(self)
        self.on_message_complete()
        return True

    def drop(self) -> None:
        """Free an incomplete request."""
        self._body_size = 0
        self.in_place = False
        self._request = None
        self._body = b""
        self._fields = []
        self._url = b""
        upload, self._upload = self._upload, None
        if upload is not None:
            upload.release()

    # Called by the parser.

    def on_message_begin(self) -> None:
        """Count a request as begun, even if its first bytes were read with the previous one."""
        self.received = self.received or 1
        self._first_byte = monotonic_ns()
        self._first_read = True

    def on_url(self, url: bytes) -> None:
        """Append a piece of the target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header field. Trailers are dropped."""
        if self._request is None:
            self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        """Decide, before the body is received, whether and how to receive it."""
        fields = self._fields
        if len(fields) > self._limits.head_fields:
            raise HttpRefusal(431, f"more than {self._limits.head_fields} header fields")
        if self.received > self._limits.head_bytes or self._read_bytes > self._limits.head_bytes:
            # What was read may hold more than the head. Each field has a colon, a space and an end of line beside it.
            self._check_size(len(self._url) + sum(len(name) + len(value) + 4 for name, value in fields))
        parser = self._parser
        assert parser is not None
        request = self._request = HttpRequest(parser.get_method(), request_path(self._url), fields)
        if b"?" in self._url:
            request.query = self._url[self._url.index(b"?") + 1 :]
        self._fields = []
        self._url = b""
        request.first_byte = self._first_byte
        if not self._first_read:
            request.head_done = monotonic_ns()
        headers = request.headers
        host = headers.get(b"host")
        if host is None and parser.get_http_version() == "1.1":
            raise HttpRefusal(400, "an HTTP/1.1 request must have a Host header")
        if host and _HOST.fullmatch(host) is None:
            raise HttpRefusal(400, "the Host header is not a name or address with an optional port")
        if len(headers) != len(fields):
            _check_repetition(fields)
        if not parser.should_keep_alive() or b"connection" in headers:
            version = parser.get_http_version()
            if version not in ("1.0", "1.1"):
                raise HttpRefusal(505, f"HTTP/{version} is not supported here: use HTTP/1.1")
            request.old_version = version == "1.0"
            request.keep_alive = parser.should_keep_alive()
        self._body_limit = self._limits.body_bytes
        size = headers.get(b"content-length")
        coding = headers.get(b"transfer-encoding")
        if coding is not None:
            _check_coding(coding.lower())
        expects = b"expect" in headers and not request.old_version
        announced = 0 if size is None else int(size)
        if announced > self._read_bytes or expects or coding is not None:
            # More of the body is to come: refuse it now if the head alone is a reason.
            refusal = self._context.refusal(request) if self._context.refusal is not None else None
            if refusal is not None:
                raise refusal
            if self._context.body_limit is not None:
                self._body_limit = self._context.body_limit(request)
            if self._takes_no_body(request):
                self._body_limit = 0
            self._expect_body(request, announced)
            self._check_memory(announced)
        elif announced:
            if self._takes_no_body(request):
                self._body_limit = 0
            self._expect_body(request, announced)
        if expects and headers[b"expect"].lower() == b"100-continue":
            self._sink.send_continue()

    def on_body(self, data: bytes) -> None:
        """Append a piece of the body."""
        if self._chunk_bytes >= 0:
            self._chunk_bytes += len(data)
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

    def on_chunk_header(self) -> None:
        """Count chunks: each costs the server more than its bytes."""
        self._chunk_bytes = 0
        self._chunks += 1
        if self._chunks > MAX_CHUNKS + 1:  # the last one is empty
            raise HttpRefusal(400, f"request body in more than {MAX_CHUNKS} chunks")

    def on_chunk_complete(self) -> None:
        """Stop counting the bytes of a chunk."""
        self._chunk_bytes = -1

    def on_message_complete(self) -> None:
        """Pass the complete request to the sink."""
        request = self._request
        assert request is not None
        body = self._body
        if self._upload is not None:
            self._charge(len(body))
            body = self._upload.finish(body)
            self._upload = None
        request.body = body
        if self._first_read:
            request.first_byte = 0
        else:
            request.body_done = monotonic_ns()
            request.head_done = request.head_done or request.first_byte
        self._request = None
        self._body = b""
        self._body_size = 0
        self.received = self._overhead_bytes = self._chunks = 0
        self._chunk_bytes = -1
        self._sink.complete(request)

    # Limits.

    def _check_size(self, size: int) -> None:
        """Refuse a head, or overhead of a chunked body, that is too large."""
        if size > self._limits.head_bytes:
            raise HttpRefusal(431, f"request line and header fields exceed {self._limits.head_bytes} bytes")

    def _check_chunk(self, data: bytes) -> None:
        """Refuse a chunk that is coming in if it announces more than the body may have. Raises HttpRefusal.

        The parser does not tell its size. A size whose line came in pieces is not checked: the limit then ends the body
        when it is reached.
        """
        end = len(data) - self._chunk_bytes
        request = self._request
        if end <= 0 or request is None:  # it began before this read
            return
        begin = max(end - _MAX_CHUNK_LINE_BYTES, 0)
        line = data[begin:end] if begin or not self._after_line else b"\r\n" + data[:end]
        size = _CHUNK_SIZE.search(line)
        if size is None:
            return
        whole = len(self._body) - self._chunk_bytes + int(size[1], 16)
        if whole > self._body_limit:
            self._allow_body(request, whole)

    def _expect_body(self, request: HttpRequest, size: int) -> None:
        if size > self._body_limit:
            self._allow_body(request, size)
        self._body_size = size

    def _takes_no_body(self, request: HttpRequest) -> bool:
        return request.method in _WITHOUT_BODY and not (
            request.method == b"DELETE" and request.path in self._limits.delete_bodies
        )

    def _allow_body(self, request: HttpRequest, size: int) -> None:
        """Raise HttpRefusal if this request may not have a larger body, else allow it."""
        if self._takes_no_body(request):
            self._context.traffic.count_refusal("too_large")
            raise HttpRefusal(
                413, f"a {request.method.decode()} request must not have a body, got {size} bytes or more"
            )
        default = self._limits.body_bytes
        limit = default if self._context.body_limit is None else self._context.body_limit(request)
        if size > limit:
            self._context.traffic.count_refusal("too_large")  # 400, as in Triton
            if limit != default:
                raise HttpRefusal(400, f"request body of {size} bytes exceeds the maximum of {limit} bytes")
            kind = "form" if request.headers.get(b"content-type", b"").startswith(b"multipart/") else "JSON"
            raise HttpRefusal(
                400,
                f"Request {kind} size of {size} bytes exceeds the maximum allowed value of {limit} bytes. "
                "Use --http-max-input-size to increase the limit.",
            )
        self._body_limit = limit

    def _check_memory(self, size: int) -> None:
        """Refuse a body of `size` bytes for which there is no memory. Raises HttpRefusal."""
        budget = self._context.budget
        if size > budget.limit_bytes:
            self._context.traffic.count_refusal("too_large")  # 400, as in Triton
            maximum = f"the maximum of {budget.limit_bytes} bytes set by --request-memory-limit"
            raise HttpRefusal(400, f"request body of {size} bytes exceeds {maximum}")
        if size > UNCHARGED_BYTES and not budget.has_room(size):
            budget.refused += 1
            raise no_memory()

    def _charge(self, size: int) -> None:
        """Charge the body that is coming in, of which `size` bytes are held. Raises HttpRefusal."""
        upload = self._upload
        if upload is None:
            upload = self._upload = self._context.budget.upload(self._sink.evict)
        if size > upload.size and not upload.grow(size - upload.size):
            raise no_memory()

    def _decline_upgrade(self, rest: bytes) -> None:
        """Continue in HTTP/1.1. The parser has ended the request at its head; its body, if any, is in the rest."""
        request = self._sink.take_back()
        headers = request.headers
        if request.method == b"CONNECT" or b"transfer-encoding" in headers:
            self._sink.refuse(HttpRefusal(400, "this server does not switch protocols"))
            return
        self._parser = httptools.HttpRequestParser(self)
        self._request = request
        self._body_size = size = int(headers.get(b"content-length", b"0"))
        self._body = rest[:size]
        if len(self._body) < size:
            self.received = len(rest) or 1
            self.in_place = True
            return
        self.on_message_complete()
        if rest[size:]:
            # The client must wait for the answer, which decides the protocol.
            self._sink.refuse(HttpRefusal(400, "data after a request to switch protocols"))


def _check_coding(coding: bytes) -> None:
    """Refuse transfer codings but chunked. Raises HttpRefusal."""
    if coding != b"chunked":
        # Without chunked at the end the length of the body is unknown: RFC 9112, 6.3.
        status = 501 if coding.rpartition(b",")[2].strip() == b"chunked" else 400
        shown = coding.decode("latin-1")
        raise HttpRefusal(status, f"Transfer-Encoding '{shown}' is not supported: use chunked, and Content-Encoding")


def _check_repetition(fields: list[tuple[bytes, bytes]]) -> None:
    """Refuse a head with more than one of a field that must be single. Raises HttpRefusal."""
    names = [name.lower() for name, _ in fields]
    for name in _SINGLE_FIELDS:
        if names.count(name) > 1:
            raise HttpRefusal(400, f"more than one {name.decode().title()} header")
