# Compiled by mypyc in wheels.
"""Parses HTTP/2 frames and joins those of one header block.

DATA frames are passed on in pieces as they arrive, so that a large frame is never buffered; all other frames are small
and are passed on whole.
"""

import time
from math import inf
from typing import Final, Protocol

from conch.domain.tensor import Buffer
from conch.protocols.http2.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEAD,
    HEAD_BYTES,
    HEADERS,
    PADDED,
    PREFACE,
    PRIORITISED,
    SETTINGS,
    ConnectionFault,
    ErrorCode,
    unpadded,
)
from conch.protocols.http2.limits import Http2Limits

# Frames that are read between two looks at the clock; header blocks and large frames, which take longer, count as all.
_FRAMES_PER_CLOCK_READ: Final = 16
_SMALL_BYTES: Final = 128
# Below this size a copy is cheaper than a view.
_VIEW_FROM: Final = 4096


class StreamTarget(Protocol):
    """Receives frames that belong to streams."""

    def data(self, stream: int, data: Buffer, size: int, ended: bool) -> None:
        """Receive a piece of data; `size` is what it counts in the windows, its share of padding included."""

    def headers(self, stream: int, block: bytes, ended: bool) -> None:
        """Receive a whole header block."""


class FrameTarget(Protocol):
    """Receives all other frames."""

    def frame(self, kind: int, stream: int, flags: int, payload: bytes) -> None:
        """Receive a whole frame."""


class FrameReader:
    """Parses the frames of one connection. `feed` raises ConnectionFault, and exceptions of the targets."""

    __slots__ = (
        "_block",
        "_block_ends",
        "_block_pieces",
        "_block_stream",
        "_ends",
        "_limits",
        "_missing",
        "_padding",
        "_partial",
        "_preface",
        "_stream",
        "_streams",
        "_target",
        "ready",
    )

    def __init__(self, streams: StreamTarget, target: FrameTarget, limits: Http2Limits) -> None:
        self._streams = streams
        self._target = target
        self._limits = limits
        self.ready = False  # whether preface and SETTINGS have come
        self._preface = PREFACE  # the part that has not come
        self._partial = b""  # a frame that is not complete
        # The frame of data that is coming in.
        self._missing = 0
        self._padding = 0
        self._stream = 0
        self._ends = False
        # The header block that is coming in, in several frames.
        self._block = bytearray()
        self._block_stream = 0  # its stream, 0 if there is none
        self._block_ends = False
        self._block_pieces = 0

    def feed(self, data: Buffer, until: float = inf) -> bool:
        """Parse data. No reference to a view is kept.

        Returns whether some of it is left because the monotonic time `until` has passed; call again then, if
        only with b"".
        """
        if self._preface:
            data = self._take_preface(bytes(data))
        if self._partial:
            data = self._partial + data
            self._partial = b""
        position = self._pass_data(data) if self._missing or self._padding else 0
        end = len(data)
        frames = 0
        streams, limits = self._streams, self._limits
        while end - position >= HEAD_BYTES:
            frames += 1
            if frames % _FRAMES_PER_CLOCK_READ == 0 and time.monotonic() > until:
                self._partial = bytes(data[position:])
                return True
            high, low, kind, flags, stream = HEAD.unpack_from(data, position)
            size = high << 16 | low
            stream &= 0x7FFFFFFF
            start = position + HEAD_BYTES
            following = start + size
            if self._block_stream or not self.ready:
                self._check_order(kind)
            if kind == DATA:
                if size > limits.frame_bytes:
                    raise _too_large(size)
                if following <= end and not flags & PADDED:
                    whole = bytes(data[start:following]) if size < _VIEW_FROM else memoryview(data)[start:following]
                    position = following
                    streams.data(stream, whole, size, bool(flags & END_STREAM))
                    continue
                begin = self._begin_data(data, start, size, flags, stream)
                if begin < 0:
                    break
                position = self._pass_data(data, begin)
                continue
            if size > limits.header_bytes_hard:
                raise _too_large(size)
            if following > end:
                break
            position = following
            payload = bytes(data[start:following])
            if kind == HEADERS or size > _SMALL_BYTES:
                frames |= _FRAMES_PER_CLOCK_READ - 1
            if kind == HEADERS:
                self._headers(stream, flags, payload)
            elif kind == CONTINUATION:
                self._continuation(stream, flags, payload)
            else:
                self._target.frame(kind, stream, flags, payload)
        if position < end:
            self._partial = bytes(data[position:])
        return False

    def clear(self) -> None:
        """Free incomplete frames and header blocks."""
        self._partial = b""
        self._block = bytearray()

    def _take_preface(self, data: bytes) -> bytes:
        """Check and remove the preface, or the part of it that has come."""
        expected = self._preface
        if not data.startswith(expected[: len(data)]):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "expected the HTTP/2 connection preface")
        self._preface = expected[len(data) :]
        return data[len(expected) :]

    def _check_order(self, kind: int) -> None:
        """Refuse anything within a header block, and before the client's SETTINGS."""
        if kind != (CONTINUATION if self._block_stream else SETTINGS):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"unexpected frame of type {kind}")
        self.ready = True

    def _headers(self, stream: int, flags: int, payload: bytes) -> None:
        if not stream:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "HEADERS on stream 0")
        if flags & (PADDED | PRIORITISED):
            payload = unpadded(flags, payload)
        if flags & END_HEADERS:
            self._streams.headers(stream, payload, bool(flags & END_STREAM))
        else:
            self._block += payload
            self._block_stream, self._block_ends, self._block_pieces = stream, bool(flags & END_STREAM), 0

    def _continuation(self, stream: int, flags: int, payload: bytes) -> None:
        limits = self._limits
        if not stream or stream != self._block_stream:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "CONTINUATION of nothing")
        self._block += payload
        self._block_pieces += 1
        if len(self._block) > limits.header_bytes_hard or self._block_pieces > limits.continuations:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "header block too large")
        if flags & END_HEADERS:
            block, self._block = bytes(self._block), bytearray()
            self._block_stream = 0
            self._streams.headers(stream, block, self._block_ends)

    def _begin_data(self, data: Buffer, start: int, size: int, flags: int, stream: int) -> int:
        """Enter a frame of data that is padded or not complete. Returns where its data begin, -1 if unknown yet."""
        self._padding = 0
        padding_size = 0
        if flags & PADDED:
            if not size:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "padded frame without a length of the padding")
            if len(data) <= start:
                return -1
            padding_size = 1
            self._padding = data[start]
        self._missing = size - padding_size - self._padding
        if self._missing < 0:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "more padding than frame")
        self._stream = stream
        self._ends = bool(flags & END_STREAM)
        if padding_size or not self._missing:
            # Padding counts in the windows like data; all of it is counted where it is announced.
            ended = self._ends and not self._missing
            self._streams.data(stream, b"", padding_size + self._padding, ended)
        return start + padding_size

    def _pass_data(self, data: Buffer, position: int = 0) -> int:
        """Pass on the available part of the current DATA frame. Returns the position behind it."""
        if self._missing:
            piece = memoryview(data)[position : position + self._missing]
            if not piece:
                return position
            position += len(piece)
            self._missing -= len(piece)
            self._streams.data(self._stream, piece, len(piece), self._ends and not self._missing)
        skipped = min(self._padding, len(data) - position)
        self._padding -= skipped
        return position + skipped


def _too_large(size: int) -> ConnectionFault:
    return ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"frame of {size} bytes")
