# Compiled by mypyc in wheels.
"""One stream of HTTP/2: the header block of its request, the heads and trailers of its response, what it received.

The first block of a connection fills the server's HPACK table, the others are a few bytes: what a connection sends with
each request, the path of the first one included, becomes entries of the dynamic table (RFC 7541). Later blocks are
references to them, one byte each. Other paths are sent as text. Heads of responses are decoded once for equal blocks.
"""

import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import unquote_to_bytes

from conch.measure.bench.load.connection import LoadRequest
from conch.protocols.http2.frames import DEFAULT_HEADER_TABLE_BYTES
from conch.protocols.http2.header_blocks import Field, HeaderBlocks

# Indexes of the static table.
_AUTHORITY: Final = 1
_METHOD_POST: Final = 3
_PATH: Final = 4
_SCHEME_HTTP: Final = 6
_SCHEME_HTTPS: Final = 7
_STATIC_NAMES: Final = {b":authority": _AUTHORITY, b"authorization": 23, b"content-type": 31, b"user-agent": 58}
_STATIC_ENTRIES: Final = 61

_INDEXED: Final = 0x80
_ADDED: Final = 0x40  # literal with incremental indexing
_PLAIN: Final = 0x00  # literal without indexing
_NEW_SIZE: Final = 0x20
_ENTRY_OVERHEAD_BYTES: Final = 32
MAX_HEADER_BYTES: Final = 2**20
_MAX_MESSAGE_BYTES: Final = 4096
_DIGITS: Final = re.compile(rb"[0-9]{1,3}\Z")
_NO_NUMBER: Final = 2  # of grpc-status: UNKNOWN, as other clients take what is not a number


class RequestHeaders:
    """Encodes the header blocks of one connection."""

    __slots__ = ("_added", "_fields", "_next", "_path", "_prefix", "_start", "_table")

    def __init__(self, secure: bool, fields: list[tuple[bytes, bytes]]) -> None:
        """`fields`, `:authority` among them, go with each request; names are in lower case."""
        scheme = _SCHEME_HTTPS if secure else _SCHEME_HTTP
        self._start = bytes((_INDEXED | _METHOD_POST, _INDEXED | scheme))
        self._fields = fields
        self._table = DEFAULT_HEADER_TABLE_BYTES
        self._prefix = b""  # a change of the table's size, due at the beginning of the next block
        self._path = b""  # whose entry is in the table
        self._added = False
        self._next = b""  # the block of `_path`, once the table is filled

    def limit_table(self, size: int) -> None:
        """Limit the table to the size that the server allows."""
        if size >= self._table:  # it never grows again: then both sizes would have to be sent
            return
        if self._added:
            # Entries may be lost: without a table there is nothing to track.
            size = 0
            self._next = b""
        self._table = size
        self._prefix = _integer(size, 5, _NEW_SIZE)

    def block(self, path: bytes) -> bytes:
        """Return the block of a request; it must be sent, in this order."""
        if self._next and path == self._path and not self._prefix:
            return self._next
        prefix, self._prefix = self._prefix, b""
        if not self._added and self._fits(path):
            return prefix + self._fill(path)
        if self._table == 0 or not self._added:
            return prefix + self._start + self._text(path)
        # Entries are found from the newest one, whose index is 62: the path's is the oldest.
        fields = self._references()
        return prefix + self._start + _literal(_PLAIN, _PATH, b"", path) + fields

    def _fits(self, path: bytes) -> bool:
        size = len(b":path") + len(path) + _ENTRY_OVERHEAD_BYTES
        for name, value in self._fields:
            size += len(name) + len(value) + _ENTRY_OVERHEAD_BYTES
        return size <= self._table

    def _fill(self, path: bytes) -> bytes:
        self._added = True
        self._path = path
        parts = [self._start, _literal(_ADDED, _PATH, b"", path)]
        for name, value in self._fields:
            parts.append(_literal(_ADDED, _STATIC_NAMES.get(name, 0), name, value))
        path_index = _STATIC_ENTRIES + 1 + len(self._fields)
        self._next = self._start + _integer(path_index, 7, _INDEXED) + self._references()
        return b"".join(parts)

    def _references(self) -> bytes:
        newest_last = range(_STATIC_ENTRIES + len(self._fields), _STATIC_ENTRIES, -1)
        return b"".join([_integer(index, 7, _INDEXED) for index in newest_last])

    def _text(self, path: bytes) -> bytes:
        parts = [_literal(_PLAIN, _PATH, b"", path)]
        for name, value in self._fields:
            parts.append(_literal(_PLAIN, _STATIC_NAMES.get(name, 0), name, value))
        return b"".join(parts)


def _literal(kind: int, index: int, name: bytes, value: bytes) -> bytes:
    """Write a field as text; `index` is that of its name in the static table, 0 if it has none."""
    head = _integer(index, 6 if kind == _ADDED else 4, kind)
    if not index:
        head += _integer(len(name), 7, 0) + name
    return head + _integer(len(value), 7, 0) + value


def _integer(value: int, bits: int, flags: int) -> bytes:
    """Write a number with a prefix of `bits` bits (RFC 7541, section 5.1)."""
    largest = (1 << bits) - 1
    if value < largest:
        return bytes((flags | value,))
    octets = [flags | largest]
    value -= largest
    while value >= 0x80:
        octets.append(value & 0x7F | 0x80)
        value >>= 7
    octets.append(value)
    return bytes(octets)


class GrpcHead:
    """A header block of a response: its head, its trailers, or both in one."""

    __slots__ = ("content_type", "grpc_status", "http_status", "message")

    def __init__(self) -> None:
        self.http_status = -1  # -1: there is none, as in trailers; 0: not a number
        self.grpc_status = -1  # -1: there is none
        self.message = ""
        self.content_type = ""


class ClientStream:
    """One call. `number` is its stream identifier."""

    __slots__ = (
        "bidirectional",
        "data",
        "ended",
        "ends",
        "failed",
        "head",
        "message",
        "message_left",
        "messages",
        "number",
        "pending",
        "prefix",
        "received_bytes",
        "request",
        "sent",
        "unreturned",
        "user",
        "window",
        "wrong",
    )

    def __init__(self, number: int, request: LoadRequest, window: int, bidirectional: bool) -> None:
        self.number = number
        self.request: LoadRequest | None = request  # of a unary call
        self.bidirectional = bidirectional
        self.user = request.user
        # What is sent.
        self.window = window
        self.data = b""  # waits for windows
        self.sent = 0  # how much of `data` has been sent
        self.ends = False  # whether the client's side ends with `data`
        self.ended = False  # whether the client's side has ended
        # What is received.
        self.unreturned = 0  # bytes that were received and not given back to the window
        self.received_bytes = 0
        self.head: GrpcHead | None = None
        self.prefix = b""  # an incomplete prefix of a message
        self.message_left = 0  # bytes of the present message that are to come
        self.message: list[bytes] = []  # its pieces, if it is kept
        self.messages = 0
        # Of a bidirectional call: the requests without their last response, by their identifiers.
        self.pending: dict[bytes, LoadRequest] = {}
        self.failed: dict[bytes, str] = {}  # error messages of requests that have not ended
        self.wrong: dict[bytes, str] = {}  # what is wrong with responses of theirs


class ResponseBlocks(HeaderBlocks[GrpcHead]):
    """Decodes the header blocks of one server. Fields that do not matter may be malformed."""

    def __init__(self) -> None:
        super().__init__(MAX_HEADER_BYTES)

    def interpret(self, fields: Iterable[Field]) -> GrpcHead:
        head = GrpcHead()
        for name, value in fields:
            if name == b":status":
                head.http_status = int(value) if _DIGITS.match(value) else 0
            elif name == b"grpc-status":
                head.grpc_status = int(value) if _DIGITS.match(value) else _NO_NUMBER
            elif name == b"grpc-message":
                text = unquote_to_bytes(bytes(value[:_MAX_MESSAGE_BYTES])).decode("utf-8", "replace")
                head.message = " ".join(text.split())
            elif name == b"content-type":
                head.content_type = value.decode("latin-1")
        return head
