# Compiled by mypyc in wheels.
"""One stream of HTTP/2: the header block of its request, the heads and trailers of its response, what it received.

The first block of a connection fills the server's HPACK table, later ones are references to its entries, one byte each
(RFC 7541). Heads of responses are decoded once for equal blocks.
"""

import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import unquote_to_bytes

from hpack import Encoder

from conch.measure.bench.load.connection import LoadRequest
from conch.protocols.http2.header_blocks import Field, HeaderBlocks

MAX_HEADER_BYTES: Final = 2**20
_MAX_MESSAGE_BYTES: Final = 4096
_DIGITS: Final = re.compile(rb"[0-9]{1,3}\Z")
_NO_NUMBER: Final = 2  # of grpc-status: UNKNOWN, as other clients take what is not a number


class RequestHeaders:
    """Encodes the header blocks of one connection. A block that leaves the table as it is serves for its path again."""

    def __init__(self, secure: bool, fields: list[tuple[bytes, bytes]]) -> None:
        """`fields`, `:authority` among them, go with each request; names are in lower case."""
        self._encoder = Encoder()
        self._start = [(b":method", b"POST"), (b":scheme", b"https" if secure else b"http")]
        self._fields = fields
        self._blocks: dict[bytes, bytes] = {}

    def limit_table(self, size: int) -> None:
        """Limit the table to the size that the server allows. It never grows again."""
        if size < self._encoder.header_table_size:
            self._encoder.header_table_size = size
            self._blocks.clear()

    def block(self, path: bytes) -> bytes:
        """Return the block of a request; it must be sent, in this order."""
        known = self._blocks.get(path)
        if known is not None:
            return known
        encoder = self._encoder
        resizes = len(encoder.table_size_changes) > 0
        before = list(encoder.header_table.dynamic_entries)
        block: bytes = encoder.encode([*self._start, (b":path", path), *self._fields], huffman=False)
        if list(encoder.header_table.dynamic_entries) != before:
            self._blocks.clear()
        elif not resizes:
            self._blocks[path] = block
        return block


class GrpcHead:
    """A header block of a response: its head, its trailers, or both in one."""

    def __init__(self) -> None:
        self.http_status = -1  # -1: there is none, as in trailers; 0: not a number
        self.grpc_status = -1  # -1: there is none
        self.message = ""
        self.content_type = ""


class ClientStream:
    """One call. `number` is its stream identifier."""

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
