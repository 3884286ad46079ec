"""Frames between the server and a process that it started: how they look and how they are cut from the stream.

    frame   := u32 length of header | u64 length of payload | header | payload     (little-endian)
    header  := marshal (version 2) of a tuple whose first item says what it is; see `messages`
    payload := bytes that the header refers to by offset

Marshal, because it is the fastest codec of the standard library by far (a request's header takes 2 µs both ways, JSON
five times that), because its version 2 is the same from Python 2.5 to today, and because the peer is our own child:
marshal is no format for strangers. What a broken child may do is still bounded: lengths are checked before memory is
taken, and whatever cannot be read raises `WireError`, upon which the server ends that child and nothing else.
"""

from __future__ import annotations

import marshal
import struct
from typing import Any, List, Sequence, Tuple, Union

Buffer = Union[bytes, bytearray, memoryview]
Message = Tuple[Any, ...]
Frame = Tuple[Message, memoryview]

PREFIX = struct.Struct("<IQ")
MAX_HEADER_SIZE = 1 << 26
MAX_PAYLOAD_SIZE = 1 << 38

# What one read asks for: many small frames. More than 128 KiB would be mapped and unmapped at every read.
READ_SIZE = 1 << 16

_MARSHAL_VERSION = 2
_NO_PAYLOAD = memoryview(b"")


class WireError(Exception):
    """The stream holds no frame of ours."""


def encode(message: Message, payload: Sequence[Any] = (), payload_size: int = 0) -> bytes:
    """Return one frame. `payload` are buffers that together hold `payload_size` bytes.

    Raises ValueError if the message holds anything but numbers, strings, bytes, None, tuples, lists and dicts of them.
    """
    header = marshal.dumps(message, _MARSHAL_VERSION)
    prefix = PREFIX.pack(len(header), payload_size)
    if not payload_size:
        return prefix + header
    return b"".join((prefix, header, *payload))


class FrameDecoder:
    """Cuts frames from a stream. Holds no more than the frame that is coming in."""

    __slots__ = ("_chunks", "_held", "_wanted")

    def __init__(self) -> None:
        self._chunks: List[bytes] = []
        self._held = 0
        self._wanted = PREFIX.size

    def feed(self, data: bytes) -> List[Frame]:
        """Take what was read and return the frames that are complete with it. Payloads are views on the data.

        Raises WireError on the first thing that is no frame.
        """
        if self._chunks:
            self._chunks.append(data)
            self._held += len(data)
            if self._held < self._wanted:
                return []
            data = b"".join(self._chunks)
            self._chunks.clear()
        frames: List[Frame] = []
        position, end, wanted = 0, len(data), PREFIX.size
        while end - position >= wanted:
            header_size, payload_size = PREFIX.unpack_from(data, position)
            if header_size > MAX_HEADER_SIZE or payload_size > MAX_PAYLOAD_SIZE:
                raise WireError("a frame of {} + {} bytes is no frame of ours".format(header_size, payload_size))
            start = position + PREFIX.size
            middle = start + header_size
            stop = middle + payload_size
            if stop > end:
                wanted = stop - position
                break
            message = _decode_header(data[start:middle])
            frames.append((message, memoryview(data)[middle:stop] if payload_size else _NO_PAYLOAD))
            position = stop
        self._held = end - position
        if self._held:
            self._wanted = wanted
            self._chunks.append(data[position:])
        return frames


def _decode_header(header: bytes) -> Message:
    try:
        message = marshal.loads(header)  # noqa: S302 - see above
    except (ValueError, EOFError, TypeError) as error:
        raise WireError("unreadable header: {}".format(error)) from None
    if not isinstance(message, tuple) or not message:
        raise WireError("a header must be a tuple with something in it, not {!r:.40}".format(message))
    return message
