# Compiled by mypyc in wheels.
"""HTTP/1.1 as the load generator speaks it: one request at a time on a connection."""

from time import monotonic_ns
from typing import Final

import httptools

from conch.measure.bench.generator import PreparedRequest, ResponseKind
from conch.measure.bench.load.connection import KnownAnswers, LoadConnection, LoadOwner, LoadRequest, Wire
from conch.measure.bench.load.http1_responses import ResponseStream, new_stream, read_openai_answer
from conch.measure.bench.records import RequestOutcome

MAX_HEAD_BYTES: Final = 65_536
_SWITCHING: Final = 101
_OK: Final = int(RequestOutcome.OK)
_CLIENT_ERROR: Final = int(RequestOutcome.CLIENT_ERROR)
_REJECTED: Final = int(RequestOutcome.REJECTED)
_SERVER_ERROR: Final = int(RequestOutcome.SERVER_ERROR)
_WRONG_ANSWER: Final = int(RequestOutcome.WRONG_ANSWER)
_OPENAI_UNARY: Final = int(ResponseKind.OPENAI_UNARY)

# How much of an error's body is kept for its message.
_MAX_MESSAGE_BYTES: Final = 2_048


class KnownAnswer:
    """The head of the last whole answer with a length: the answers of one server mostly have equal ones."""

    def __init__(self) -> None:
        self.head = b""  # its empty line included
        self.status = 0
        self.size = -1  # of head and body

    def learn(self, answer: bytes, status: int) -> None:
        """Remember an answer, unless another head, such as 100 Continue, came before its own."""
        end = answer.find(b"\r\n\r\n") + 4
        if end > 3 and answer[9:12] == b"%d" % status:
            self.head, self.status, self.size = answer[:end], status, len(answer)


def encode_http1(request: PreparedRequest, connection_fields: bytes) -> bytes:
    """Join a request with the fields of the connection (Host, Authorization …, each ended by CR LF)."""
    length = (
        b"Content-Length: %d\r\n" % len(request.body) if request.body or not request.head.startswith(b"GET ") else b""
    )
    return b"".join((request.head, connection_fields, length, b"\r\n", request.body))


class Http1Connection(LoadConnection):
    """One HTTP/1.1 connection."""

    def __init__(self, owner: LoadOwner, wire: Wire, known: KnownAnswer, answers: KnownAnswers | None = None) -> None:
        super().__init__(owner, wire, 1)
        self._answers = answers
        self._checked = False  # whether an answer of this connection was checked
        self._known = known
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._request: LoadRequest | None = None
        self._head_bytes = 0  # received before the end of the head
        self._now_ns = 0  # of the bytes that are being parsed
        self._status = 0  # of the answer whose body is being received, 0 before
        self._has_length = False
        self._is_chunked = False
        self._coding = b""  # one that is not supported
        self._ended = False
        self._keeps_alive = False
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
        known = self._known
        is_start = not self._status and not self._head_bytes
        if is_start and len(data) == known.size and not request.encoded.streams and data.startswith(known.head):
            # The usual case: one whole answer whose head is that of the answer before.
            request.status = known.status
            request.first_ns = now_ns
            self._keeps_alive = True
            keeps = self._keeps(request, known.status)
            self._complete(request, known.status, data[len(known.head) :] if keeps else b"", now_ns)
            return
        if not self._status:
            self._head_bytes += len(data)
        problem = self._parse(data, now_ns)
        if problem:
            self.fail(problem, _WRONG_ANSWER)
            return
        request.status = self._status
        if self._ended:
            if is_start and self._has_length and not self._is_chunked and self._keeps_alive:
                known.learn(data, self._status)
            self._finish(request, now_ns)

    def _parse(self, data: bytes, now_ns: int) -> str:
        """Parse bytes of an answer; return what is wrong with them, "" if nothing is."""
        assert self._parser is not None
        self._now_ns = now_ns
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if self._parser.get_status_code() == _SWITCHING:
                return "the server switched protocols without being asked to"
            if self._ended:
                return "the server sent more bytes than the answer has"
            if self._status:
                return f"the body of the answer is malformed: {error}"
            return f"expected an HTTP/1.1 response, got {data[:40]!r}: {error}"
        if self._coding:
            return f"Transfer-Encoding {self._coding.decode('latin-1')!r} is not supported"
        if not self._status and self._head_bytes > MAX_HEAD_BYTES:
            return f"the head of the answer has more than {MAX_HEAD_BYTES} bytes"
        return ""

    # Callbacks of the parser.

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note how the end of the body is found."""
        lower = name.lower()
        if lower == b"content-length":
            self._has_length = True
        elif lower == b"transfer-encoding":
            self._is_chunked = True
            if value.lower() != b"chunked":
                self._coding = value

    def on_headers_complete(self) -> None:
        """Begin the body; those of interim responses, such as 100 Continue, are empty."""
        assert self._parser is not None
        status: int = self._parser.get_status_code()
        request = self._request
        if status < 200 or request is None:
            return
        self._status = status
        self._content_bytes = 0
        if status < 300 and request.encoded.streams:
            self._stream = new_stream(self.owner, request, self._answers)

    def on_body(self, body: bytes) -> None:
        """Keep a part of the body, if something reads it."""
        request = self._request
        if request is None:
            return
        if self._stream is not None:
            if not self._pieces:
                self.owner.defer(self)
            self._pieces.append((self._now_ns, body))
            return
        if request.first_ns == 0:
            request.first_ns = self._now_ns
        if self._status < 300:
            keeps = self._keeps(request, self._status)
        else:
            keeps = request.encoded.keep_body or self._content_bytes < _MAX_MESSAGE_BYTES
        if keeps:
            self._body.append(body)
        self._content_bytes += len(body)

    def on_message_complete(self) -> None:
        """Note the end of the answer."""
        if self._status and self._parser is not None:
            self._ended = True
            self._keeps_alive = self._parser.should_keep_alive()

    def peer_closed(self) -> None:
        request = self._request
        if request is None:
            self.close()
        elif self._status and not self._has_length and not self._is_chunked:
            self._keeps_alive = False
            self._finish(request, monotonic_ns())
        elif self._status:
            self.fail(f"the server closed the connection within the answer, after {request.received_bytes} bytes")
        elif self._head_bytes:
            self.fail("the server closed the connection within the head of the answer")
        else:
            self.fail("the server closed the connection without an answer")

    def _keeps(self, request: LoadRequest, status: int) -> bool:
        return self._answers is not None or request.encoded.keep_body or status >= 300

    def _finish(self, request: LoadRequest, now_ns: int) -> None:
        stream = self._stream
        if stream is not None and not (self._read_pieces(stream) and stream.end(now_ns)):
            self.cancel(request)
            return
        if request.first_ns == 0 and stream is None:
            request.first_ns = now_ns
        status = self._status
        self._status = self._head_bytes = 0
        self._has_length = self._is_chunked = self._ended = False
        body = b"".join(self._body)
        self._body.clear()
        self._complete(request, status, body, now_ns)

    def _complete(self, request: LoadRequest, status: int, body: bytes, now_ns: int) -> None:
        if self._stream is None:
            request.responses = 1
        request.body = body
        self._request = None
        self.answered = True
        if status < 300:
            self._settle(request, now_ns)
        else:
            self.owner.settle(request, http_outcome(status), now_ns, f"HTTP {status}{_reason(body)}")
        if self._keeps_alive:
            self.owner.available(self)
        else:
            self.close()

    def _shut(self) -> None:
        super()._shut()
        self._parser = None  # breaks a reference cycle, which the garbage collector would find late

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
