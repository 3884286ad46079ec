# Compiled by mypyc in wheels.
"""Requests, refusals and limits of the HTTP listener, and the parts of an answer's head."""

from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import httptools
import orjson

from conch.domain.tensor import Buffer

NO_HEADERS: Final = b""

_STATUS_LINES: Final = {
    status.value: b"HTTP/1.1 %d %s\r\n" % (status.value, status.phrase.encode()) for status in HTTPStatus
}
_CLOSE: Final = b"Connection: close\r\n"


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits of one client. Times are seconds, sizes bytes.

    A body larger than `body_bytes` is refused unless the handler has another limit for this request, before it is read
    if its size is announced. A request must arrive within `receive_grace_s` plus the time that its bytes take at
    `receive_bytes_per_s`, which stops a client that sends one byte a minute. `stalled_write_s` is the timeout for a
    client that does not read its answer, `idle_s` that for a connection without a request. A DELETE of one of
    `delete_bodies`, which are paths, may have a body.
    """

    connections: int = 16_384
    head_bytes: int = 65_536
    head_fields: int = 128
    body_bytes: int = 64 * 1024 * 1024
    idle_s: float = 300.0
    receive_grace_s: float = 30.0
    receive_bytes_per_s: int = 1024
    stalled_write_s: float = 120.0
    delete_bodies: tuple[str, ...] = ()


class HttpRequest:
    """One request, complete.

    `method` is in upper case, `path` is as sent without `query`; nothing is unquoted. `fields` are the header fields
    as they came, `headers` their values by lower-case name, the last one if a name is repeated. `tenant` is set for
    requests that the server makes itself for a tenant.
    """

    __slots__ = (
        "body",
        "body_done",
        "fields",
        "first_byte",
        "head_done",
        "headers",
        "keep_alive",
        "method",
        "old_version",
        "path",
        "query",
        "tenant",
    )

    def __init__(
        self,
        method: bytes,
        path: str,
        fields: list[tuple[bytes, bytes]],
        headers: dict[bytes, bytes] | None = None,
    ) -> None:
        self.method = method
        self.path = path
        self.fields = fields
        self.headers = {name.lower(): value for name, value in fields} if headers is None else headers
        self.query = b""
        self.tenant: str | None = None
        # When its first byte, its head and its body came (monotonic ns); 0 for one that came in one piece.
        self.first_byte = self.head_done = self.body_done = 0
        self.body: Buffer = b""
        self.keep_alive = True
        self.old_version = False  # HTTP/1.0: no chunks

    def again(self, body: Buffer) -> "HttpRequest":
        """Return a request with the same head and another body."""
        request = HttpRequest(self.method, self.path, self.fields, self.headers)
        request.body, request.query = body, self.query
        return request

    def __repr__(self) -> str:
        return f"{self.method.decode()} {self.path}, {len(self.body)} B"


class HttpRefusal(Exception):
    """An error that the listener itself answers. It closes the connection, whose further bytes cannot be trusted."""

    def __init__(self, status: int, message: str, headers: bytes = b"", body: bytes | None = None) -> None:
        """`headers` are further header lines; `body` is a whole body, of which they give the type."""
        super().__init__(message)
        self.status = status
        self.message = message
        self._headers = headers
        self._body = body

    @classmethod
    def malformed(cls, error: BaseException) -> "HttpRefusal":
        """Return the refusal of malformed HTTP, with the parser's reason."""
        return cls(400, f"malformed HTTP request: {error}")

    def content(self) -> tuple[bytes, bytes]:
        """Return headers and body of the answer."""
        if self._body is not None:
            return self._headers, self._body
        headers, body = error_in_json(self.message)
        return headers + self._headers, body

    def answer(self) -> bytes:
        """Return all that is sent."""
        headers, body = self.content()
        return sized_head(self.status, headers, len(body), keep_alive=False) + body


def request_path(url: bytes) -> str:
    """Return the path of a request target, which may be a whole URL, without its query. Raises HttpRefusal."""
    if not url.startswith(b"/"):
        try:
            url = httptools.parse_url(url).path or b"/"
        except httptools.HttpParserInvalidURLError:
            raise HttpRefusal(400, "malformed request target") from None
    if b"?" in url:
        url = url[: url.index(b"?")]
    return url.decode("utf-8", "replace")


def header(name: bytes, value: bytes) -> bytes:
    """Write one header line. Headers of an answer are such lines, one after another."""
    return b"%s: %s\r\n" % (name, value)


def content_type(value: bytes) -> bytes:
    """Write the header line for a content type."""
    return header(b"Content-Type", value)


def error_in_json(message: str) -> tuple[bytes, bytes]:
    """Return the headers and the body of an error of the listener's own, in the form that clients of Triton expect."""
    return content_type(b"application/json"), orjson.dumps({"error": message})


def sized_head(status: int, headers: bytes, length: int, keep_alive: bool) -> bytes:
    """Write everything that stands before a body of known size. Raises KeyError for an unknown status."""
    line = _STATUS_LINES[status]
    return b"%s%s%sContent-Length: %d\r\n\r\n" % (line, headers, b"" if keep_alive else _CLOSE, length)


def streamed_head(status: int, headers: bytes, chunked: bool, keep_alive: bool) -> bytes:
    """Write everything that stands before a body that ends with its last chunk, or with the connection."""
    coding = b"Transfer-Encoding: chunked\r\n" if chunked else b""
    return b"%s%s%s%s\r\n" % (_STATUS_LINES[status], headers, b"" if keep_alive else _CLOSE, coding)


def no_memory() -> HttpRefusal:
    """Return the refusal of a request for whose body there is no memory now."""
    message = "the memory for request bodies set by --request-memory-limit is in use; try again later"
    return HttpRefusal(503, message, header(b"Retry-After", b"1"))
