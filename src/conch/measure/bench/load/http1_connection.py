# Compiled by mypyc in wheels.
"""HTTP/1.1 as the load generator speaks it: one request at a time on a connection."""

from time import monotonic_ns
from typing import Final

from conch.measure.bench.load.connection import KnownAnswers, LoadConnection, LoadOwner, LoadRequest, Wire
from conch.measure.bench.load.http1_responses import ResponseStream, new_stream, read_openai_answer
from conch.measure.bench.prepared_request import PreparedRequest, ResponseKind
from conch.measure.bench.records import RequestOutcome

MAX_HEAD_BYTES: Final = 65_536
_MAX_KNOWN_HEADS: Final = 256

NO_LENGTH: Final = -1
_OK: Final = int(RequestOutcome.OK)
_CLIENT_ERROR: Final = int(RequestOutcome.CLIENT_ERROR)
_REJECTED: Final = int(RequestOutcome.REJECTED)
_SERVER_ERROR: Final = int(RequestOutcome.SERVER_ERROR)
_WRONG_ANSWER: Final = int(RequestOutcome.WRONG_ANSWER)
_OPENAI_UNARY: Final = int(ResponseKind.OPENAI_UNARY)

# How much of an error's body is kept for its message.
_MAX_MESSAGE_BYTES: Final = 2_048


class MalformedResponse(Exception):
    """The server's bytes are not an HTTP/1.1 response."""


class ResponseHead:
    """What a head says. `length` of the body is NO_LENGTH if chunked, or if the end of the connection ends it."""

    def __init__(self, raw: bytes, status: int, length: int, chunked: bool, keeps_alive: bool) -> None:
        self.raw = raw
        self.status = status
        self.length = length
        self.chunked = chunked
        self.keeps_alive = keeps_alive
        # Bytes of the whole response if these are known and the connection is as before; else never equal to a length.
        self.total = len(raw) + length if length >= 0 and keeps_alive and status >= 200 else -1


class KnownHeads:
    """Heads seen before: the answers of one server mostly have equal ones."""

    def __init__(self) -> None:
        self._heads: dict[bytes, ResponseHead] = {}
        self.last = ResponseHead(b"", 0, NO_LENGTH, False, False)

    def read(self, raw: bytes) -> ResponseHead:
        """Return the meaning of a head that includes its empty line. Raises MalformedResponse."""
        known = self._heads.get(raw)
        if known is None:
            known = parse_head(raw)
            if len(self._heads) >= _MAX_KNOWN_HEADS:
                self._heads.clear()
            self._heads[raw] = known
        self.last = known
        return known


def parse_head(raw: bytes) -> ResponseHead:
    """Read a head that includes its empty line. Raises MalformedResponse."""
    lines = raw[:-4].split(b"\r\n")
    version, _, rest = lines[0].partition(b" ")
    code = rest[:3]
    if (
        version not in (b"HTTP/1.1", b"HTTP/1.0")
        or not code.isdigit()
        or len(code) != 3
        or rest[3:4] not in (b"", b" ")
    ):
        raise MalformedResponse(f"expected an HTTP/1.1 status line, got {_shown(lines[0])}")
    status = int(code)
    length = NO_LENGTH
    chunked = False
    keeps_alive = version == b"HTTP/1.1"
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        if not colon or not name or name != name.strip():
            raise MalformedResponse(f"malformed header field {_shown(line)}")
        name = name.lower()
        value = value.strip()
        if name == b"content-length":
            if not value.isdigit() or len(value) > 18 or length not in (NO_LENGTH, int(value)):
                raise MalformedResponse(f"invalid Content-Length {_shown(value)}")
            length = int(value)
        elif name == b"transfer-encoding":
            if value.lower() != b"chunked":
                raise MalformedResponse(f"Transfer-Encoding {_shown(value)} is not supported")
            chunked = True
        elif name == b"connection":
            tokens = value.lower().replace(b" ", b"").split(b",")
            if b"close" in tokens:
                keeps_alive = False
            elif b"keep-alive" in tokens:
                keeps_alive = True
    if chunked or status < 200 or status in (204, 304):
        length = NO_LENGTH if chunked and status >= 200 and status not in (204, 304) else 0
        chunked = length == NO_LENGTH
    elif length == NO_LENGTH:
        keeps_alive = False
    return ResponseHead(raw, status, length, chunked, keeps_alive)


class ChunkedBody:
    """A body of Transfer-Encoding: chunked, which may come in any pieces."""

    def __init__(self) -> None:
        self._held = b""  # an incomplete line
        self._left = 0  # bytes of the present chunk that are to come, with its CR LF
        self._trailers = False
        self.ended = False

    def feed(self, data: bytes) -> bytes:
        """Return the content in `data`. Sets `ended`; raises MalformedResponse also for bytes behind the end."""
        if self._held:
            data = self._held + data
            self._held = b""
        content: list[bytes] = []
        at = 0
        size = len(data)
        while at < size:
            if self.ended:
                raise MalformedResponse("bytes after the last chunk")
            if self._left > 2:
                piece = data[at : at + self._left - 2]
                content.append(piece)
                at += len(piece)
                self._left -= len(piece)
                continue
            if self._left:
                at = self._end_of_chunk(data, at)
                continue
            end = data.find(b"\r\n", at)
            if end < 0:
                if size - at > MAX_HEAD_BYTES:
                    raise MalformedResponse("a chunk size or trailer without an end")
                self._held = data[at:]
                break
            self._line(data[at:end])
            at = end + 2
        return content[0] if len(content) == 1 else b"".join(content)

    def _end_of_chunk(self, data: bytes, at: int) -> int:
        expected = b"\r\n"[2 - self._left :]
        found = data[at : at + self._left]
        if not expected.startswith(found):
            raise MalformedResponse("a chunk does not end with CR LF")
        self._left -= len(found)
        return at + len(found)

    def _line(self, line: bytes) -> None:
        if self._trailers:
            self.ended = not line
            return
        digits = line.partition(b";")[0].strip()
        try:
            length = int(digits, 16) if digits.isalnum() and len(digits) <= 15 else -1
        except ValueError:
            length = -1
        if length < 0:
            raise MalformedResponse(f"invalid chunk size {_shown(line)}")
        if length == 0:
            self._trailers = True
        else:
            self._left = length + 2


def _shown(line: bytes) -> str:
    return repr(line[:60].decode("latin-1"))


def encode_http1(request: PreparedRequest, connection_fields: bytes) -> bytes:
    """Join a request with the fields of the connection (Host, Authorization …, each ended by CR LF)."""
    length = (
        b"Content-Length: %d\r\n" % len(request.body) if request.body or not request.head.startswith(b"GET ") else b""
    )
    return b"".join((request.head, connection_fields, length, b"\r\n", request.body))


class Http1Connection(LoadConnection):
    """One HTTP/1.1 connection."""

    def __init__(self, owner: LoadOwner, wire: Wire, known: KnownHeads, answers: KnownAnswers | None = None) -> None:
        super().__init__(owner, wire, 1)
        self._answers = answers
        self._checked = False  # whether an answer of this connection was checked
        self._known = known
        self._request: LoadRequest | None = None
        self._held = b""  # an incomplete head
        self._head: ResponseHead | None = None  # of the response whose body is being received
        self._left = 0  # bytes of it that are to come, if its length is known
        self._chunked: ChunkedBody | None = None
        self._body: list[bytes] = []
        self._content_bytes = 0
        self._stream: ResponseStream | None = None
        self._pieces: list[tuple[int, bytes]] = []  # of a stream, not yet read: when they came, and the bytes

    def opened(self) -> None:
        self.owner.available(self)

    def start(self, request: LoadRequest) -> None:
        self._request = request
        data = request.encoded.wire
        request.sent_bytes = len(data)
        self.owner.sent(request, monotonic_ns())
        self.send(data)

    def requests(self) -> list[LoadRequest]:
        return [] if self._request is None else [self._request]

    def cancel(self, request: LoadRequest) -> None:
        if self._request is request:
            self._request = None
            self.close()

    def received(self, data: bytes, now_ns: int) -> None:
        request = self._request
        if request is None:
            self.fail("the server sent bytes that answer no request")
            return
        request.received_bytes += len(data)
        known = self._known.last
        if (
            self._head is None
            and len(data) == known.total
            and not self._held
            and not request.encoded.streams
            and data.startswith(known.raw)
        ):
            # The usual case: one whole answer whose head is that of the answer before.
            request.status = known.status
            request.first_ns = now_ns
            self._complete(request, known, data[len(known.raw) :] if self._keeps(request, known) else b"", now_ns)
            return
        try:
            if self._head is None:
                self._receive_head(request, self._held + data if self._held else data, now_ns)
            else:
                self._receive_body(request, data, now_ns)
        except MalformedResponse as error:
            self.fail(str(error), _WRONG_ANSWER)

    def peer_closed(self) -> None:
        request, head = self._request, self._head
        if request is None:
            self.close()
        elif head is not None and head.length < 0 and not head.chunked:
            self._finish(request, head, monotonic_ns())
        elif head is not None:
            self.fail(f"the server closed the connection within the answer, after {request.received_bytes} bytes")
        elif self._held:
            self.fail("the server closed the connection within the head of the answer")
        else:
            self.fail("the server closed the connection without an answer")

    def _keeps(self, request: LoadRequest, head: ResponseHead) -> bool:
        return self._answers is not None or request.encoded.keep_body or head.status >= 300

    def _receive_head(self, request: LoadRequest, data: bytes, now_ns: int) -> None:
        end = data.find(b"\r\n\r\n")
        if end < 0:
            if not b"HTTP/1.".startswith(data[:7]):
                raise MalformedResponse(f"expected an HTTP/1.1 response, got {data[:40]!r}")
            if len(data) > MAX_HEAD_BYTES:
                raise MalformedResponse(f"the head of the answer has more than {MAX_HEAD_BYTES} bytes")
            self._held = data
            return
        self._held = b""
        end += 4
        head = self._known.read(data[:end])
        if head.status < 200:  # such as 100 Continue
            if head.status == 101:
                raise MalformedResponse("the server switched protocols without being asked to")
            if len(data) > end:
                self._receive_head(request, data[end:], now_ns)
            return
        request.status = head.status
        self._head = head
        self._left = head.length
        self._chunked = ChunkedBody() if head.chunked else None
        self._content_bytes = 0
        if head.status < 300 and request.encoded.streams:
            self._stream = new_stream(self.owner, request, self._answers)
        if head.length == 0 or len(data) > end:
            self._receive_body(request, data[end:], now_ns)

    def _receive_body(self, request: LoadRequest, data: bytes, now_ns: int) -> None:
        head = self._head
        assert head is not None
        if request.first_ns == 0 and self._stream is None:
            request.first_ns = now_ns
        chunked = self._chunked
        if chunked is not None:
            content = chunked.feed(data)
            ended = chunked.ended
        else:
            content = data
            ended = False
            if self._left >= 0:
                self._left -= len(data)
                if self._left < 0:
                    raise MalformedResponse(f"the answer has {-self._left} bytes more than its Content-Length")
                ended = self._left == 0
        if content:
            if self._stream is not None:
                if not self._pieces:
                    self.owner.defer(self)
                self._pieces.append((now_ns, content))
            else:
                self._content(request, head, content)
        if ended:
            self._finish(request, head, now_ns)

    def _content(self, request: LoadRequest, head: ResponseHead, content: bytes) -> None:
        if head.status < 300:
            keeps = self._keeps(request, head)
        else:
            keeps = request.encoded.keep_body or self._content_bytes < _MAX_MESSAGE_BYTES
        if keeps:
            self._body.append(content)
        self._content_bytes += len(content)

    def _finish(self, request: LoadRequest, head: ResponseHead, now_ns: int) -> None:
        stream = self._stream
        if stream is not None and not (self._read_pieces(stream) and stream.end(now_ns)):
            self.cancel(request)
            return
        self._head = None
        self._chunked = None
        body = b""
        if self._body:
            body = b"".join(self._body)
            self._body.clear()
        self._complete(request, head, body, now_ns)

    def _complete(self, request: LoadRequest, head: ResponseHead, body: bytes, now_ns: int) -> None:
        if self._stream is None:
            request.responses = 1
        request.body = body
        self._request = None
        self.answered = True
        status = head.status
        if status < 300:
            self._settle(request, now_ns)
        else:
            self.owner.settle(request, http_outcome(status), now_ns, f"HTTP {status}{_reason(body)}")
        if head.keeps_alive:
            self.owner.available(self)
        else:
            self.close()

    def _settle(self, request: LoadRequest, now_ns: int) -> None:
        stream = self._stream
        if stream is not None:
            self._stream = None
            self.owner.settle(request, stream.outcome, now_ns, stream.message)
        elif request.encoded.kind == _OPENAI_UNARY:
            wrong = read_openai_answer(request)
            self.owner.settle(request, _WRONG_ANSWER if wrong else _OK, now_ns, wrong)
        elif self._answers is not None:
            first = not self._checked
            self._checked = True
            wrong = self._answers.problem(request.body, first)
            self.owner.settle(request, _WRONG_ANSWER if wrong else _OK, now_ns, wrong)
        else:
            self.owner.settle(request, _OK, now_ns)

    def deferred(self) -> None:
        stream, request = self._stream, self._request
        if stream is not None and request is not None and not self._read_pieces(stream):
            self.cancel(request)

    def _read_pieces(self, stream: ResponseStream) -> bool:
        """Read what has come of a stream; False if the request was cancelled by it."""
        pieces = self._pieces
        self._pieces = []
        for now_ns, content in pieces:  # noqa: SIM110 - quicker
            if not stream.feed(content, now_ns):
                return False
        return True


def http_outcome(status: int) -> int:
    """Return the RequestOutcome of an HTTP status that is not a success."""
    if status in (429, 503):
        return _REJECTED
    if status >= 500:
        return _SERVER_ERROR
    return _CLIENT_ERROR


def _reason(body: bytes) -> str:
    text = " ".join(body[:_MAX_MESSAGE_BYTES].decode("utf-8", "replace").split())
    return f": {text[:300]}" if text else ""
