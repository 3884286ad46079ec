# Compiled by mypyc in wheels.
"""gRPC message framing: one byte for the compressed flag, four of length, the message.

`MessageReader` reads the messages of a call, `AnswerForm` frames its answers, compressed if that is configured and the
client accepts it.
"""

import zlib
from collections.abc import Sequence
from struct import Struct
from typing import Final

import numpy as np

from conch.base.errors import ConchError, InvalidRequest
from conch.domain.tensor import Buffer
from conch.protocols.connections.traffic import Traffic
from conch.protocols.http2.header_blocks import response_block
from conch.server.frontends.grpc.status import (
    ACCEPTED_CODINGS,
    CONTENT_TYPE,
    GrpcError,
    Status,
    error_block,
    refusal_reason,
)

# The largest message that gRPC can frame, as in Triton: gRPC's default of 4 MiB is too small for tensors.
MAX_MESSAGE_SIZE: Final = 2**31 - 1

PREFIX: Final = Struct(">BL")
PREFIX_SIZE: Final = PREFIX.size
IDENTITY: Final = b"identity"
_WINDOW_BITS: Final = {b"gzip": 16 + zlib.MAX_WBITS, b"deflate": zlib.MAX_WBITS}
CODINGS: Final = frozenset({IDENTITY, *_WINDOW_BITS})
# A client sends as little as a thousandth of this, and the server does the work.
MAX_DECOMPRESSED_BYTES: Final = 256 * 2**20
_MAX_INLINE_BYTES: Final = 2**20
# `--grpc-infer-response-compression-level` as levels of zlib.
_LEVELS: Final = {"none": 0, "low": 1, "medium": 6, "high": 9}
_HEAD: Final = response_block(200, [CONTENT_TYPE, ACCEPTED_CODINGS])


class Compressed:
    """A message that is too large, decompressed, to be decompressed on the event loop."""

    __slots__ = ("coding", "data")

    def __init__(self, data: Buffer, coding: bytes) -> None:
        self.data = data
        self.coding = coding

    def __len__(self) -> int:
        return len(self.data)


class MessageReader:
    """Splits the data of one stream into messages: `add` data, then call `next` until it returns None."""

    __slots__ = ("_body", "_coding", "_compressed", "_data", "_filled", "_limit", "_position", "_prefix", "_size")

    def __init__(self, coding: bytes, limit: int = MAX_MESSAGE_SIZE) -> None:
        """Create a reader. `coding` is the coding of compressed messages, `limit` the size of the largest in bytes."""
        self._limit = limit
        self._coding = coding
        self._data: Buffer = b""
        self._position = 0
        self._prefix = b""  # what has come of it, if not all
        self._body: memoryview | None = None  # of a message that has not come whole
        self._filled = 0
        self._size = 0
        self._compressed = False

    @property
    def held_bytes(self) -> int:
        """Bytes that are held: of an incomplete message, and of data that are not read yet."""
        left = len(self._data) - self._position
        return left if self._body is None else left + self._filled

    def clear(self) -> None:
        """Free the data."""
        self._body = None
        self._data = b""
        self._position = 0

    @property
    def midway(self) -> bool:
        """Whether part of a message has come."""
        return self._body is not None or bool(self._prefix) or self._position < len(self._data)

    def add(self, data: Buffer) -> None:
        """Add data, which `next` copies. All earlier data must have been read."""
        self._data = data
        self._position = 0

    def keep(self) -> None:
        """Copy the data that are left, whose buffer is about to be reused."""
        self._data = bytes(self._data[self._position :])
        self._position = 0

    def next(self) -> "Buffer | Compressed | None":
        """Return the next message, decompressed unless that is much; None if it has not come whole.

        Raises GrpcError, InvalidRequest.
        """
        if self._body is None and not self._read_prefix():
            return None
        position, size = self._position, self._size
        available = len(self._data) - position
        if self._body is None:
            if available >= size:
                self._position = position + size
                message = self._data[position : position + size]
                return self._decoded(message if isinstance(message, bytes) else bytes(message))
            self._body = _allocate(size)
            self._filled = 0
        taken = min(size - self._filled, available)
        self._body[self._filled : self._filled + taken] = self._data[position : position + taken]
        self._filled += taken
        self._position = position + taken
        if self._filled < size:
            self._data = b""
            self._position = 0
            return None
        body, self._body = self._body, None
        return self._decoded(body)

    def _read_prefix(self) -> bool:
        data, position = self._data, self._position
        missing = PREFIX_SIZE - len(self._prefix)
        piece = data[position : position + missing]
        self._position += len(piece)
        if len(piece) < missing:
            self._prefix += piece
            return False
        compressed, self._size = PREFIX.unpack(self._prefix + piece)
        self._prefix = b""
        if compressed > 1:
            raise InvalidRequest(f"the compressed flag of a message is {compressed}, expected 0 or 1")
        if self._size > self._limit:
            raise too_large(self._size, self._limit)
        self._compressed = bool(compressed)
        return True

    def _decoded(self, message: Buffer) -> "Buffer | Compressed":
        if not self._compressed:
            return message
        if _expands_much(message, self._coding):
            return Compressed(message, self._coding)
        return decompress_message(message, self._coding)


def too_large(size: int, limit: int) -> GrpcError:
    """Return the refusal of a message of `size` bytes."""
    return GrpcError(Status.RESOURCE_EXHAUSTED, f"message of {size} bytes exceeds the maximum of {limit}")


def _allocate(size: int) -> memoryview:
    """Return memory for a message. It is allocated on write: a message that is announced and not sent costs nothing."""
    try:
        return np.empty(size, np.uint8).data
    except MemoryError:
        raise GrpcError(Status.RESOURCE_EXHAUSTED, f"no memory for a message of {size} bytes") from None


def _expands_much(message: Buffer, coding: bytes) -> bool:
    """Whether a message is too large, decompressed, for the event loop. False for a corrupt one, whatever its size."""
    window_bits = _WINDOW_BITS.get(coding)
    if window_bits is None:
        return False
    try:
        return len(zlib.decompressobj(window_bits).decompress(message, _MAX_INLINE_BYTES)) == _MAX_INLINE_BYTES
    except zlib.error:
        return False


def decompress_message(message: Buffer, coding: bytes) -> bytes:
    """Decompress a whole message. Raises GrpcError, InvalidRequest."""
    window_bits = _WINDOW_BITS.get(coding)
    if window_bits is None:
        raise InvalidRequest("compressed message without a grpc-encoding, expected gzip or deflate")
    inflater = zlib.decompressobj(window_bits)
    try:
        # One byte more than allowed tells "too large" from "just fits".
        plain = inflater.decompress(message, MAX_DECOMPRESSED_BYTES + 1)
    except zlib.error as error:
        raise InvalidRequest(f"a message is not valid {coding.decode()} data: {error}") from None
    if len(plain) > MAX_DECOMPRESSED_BYTES:
        raise GrpcError(
            Status.RESOURCE_EXHAUSTED, f"decompressed message exceeds the maximum of {MAX_DECOMPRESSED_BYTES} bytes"
        )
    if not inflater.eof or inflater.unused_data:
        raise InvalidRequest(f"a message is not exactly one complete {coding.decode()} stream")
    return plain


def compressed(parts: Sequence[Buffer], coding: bytes, level: int) -> list[Buffer]:
    """Compress a message given in parts."""
    deflater = zlib.compressobj(level, zlib.DEFLATED, _WINDOW_BITS[coding])
    return [*(deflater.compress(part) for part in parts), deflater.flush()]


class AnswerForm:
    """Frames and compresses the answers to calls with equal heads."""

    __slots__ = ("_coding", "_level", "_traffic", "head")

    def __init__(self, level: str, accepted: bytes, traffic: Traffic) -> None:
        """Create a form. `level` is the configured compression, `accepted` the best coding that the client accepts."""
        self._traffic = traffic
        self._level = _LEVELS[level]
        self._coding = accepted if self._level else IDENTITY
        # The header block that stands before the first message.
        self.head = _HEAD
        if self._coding != IDENTITY:
            self.head = response_block(200, [CONTENT_TYPE, ACCEPTED_CODINGS, (b"grpc-encoding", self._coding)])

    def error_block(self, error: ConchError | GrpcError, metadata: Sequence[tuple[bytes, bytes]] = ()) -> bytes:
        """Return the block that answers a call which failed, and count it if it is refused."""
        self._traffic.count_refusal(refusal_reason(error))
        return error_block(error, metadata)

    def message(self, parts: Sequence[Buffer]) -> tuple[list[Buffer], int]:
        """Frame a message that is given in parts. Returns the parts to send and their size. Raises InvalidRequest."""
        size = sum(map(len, parts))
        if size > MAX_MESSAGE_SIZE:
            raise InvalidRequest(
                f"Response has byte size {size} which exceeds gRPC's byte size limit {MAX_MESSAGE_SIZE}."
            )
        if self._coding == IDENTITY:
            return [PREFIX.pack(0, size), *parts], size + PREFIX.size
        packed = compressed(parts, self._coding, self._level)
        size = sum(map(len, packed))
        return [PREFIX.pack(1, size), *packed], size + PREFIX.size
