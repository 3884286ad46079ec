# Compiled by mypyc in wheels.
"""The head of an HTTP/1.1 response, and the framing of its body."""

from typing import Final

MAX_HEAD_BYTES: Final = 65_536
_MAX_KNOWN_HEADS: Final = 256

NO_LENGTH: Final = -1


class MalformedResponse(Exception):
    """The server's bytes are not an HTTP/1.1 response."""


class ResponseHead:
    """What a head says. `length` of the body is NO_LENGTH if chunked, or if the end of the connection ends it."""

    __slots__ = ("chunked", "keeps_alive", "length", "raw", "status", "total")

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

    __slots__ = ("_heads", "last")

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

    __slots__ = ("_held", "_left", "_trailers", "ended")

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
