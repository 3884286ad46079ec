"""Frames between the server and a process that it started.

    frame   := u32 length of header | u64 length of payload | header | payload     (little-endian)
    header  := a message: a sequence whose first item is the type of the message; see `messages`
    payload := bytes that the header refers to by offset

A header to a child is marshal (version 2, the same in all Pythons since 2.5), by far the fastest codec of the standard
library. It is not safe for bytes of an untrusted peer: a self-referencing tuple of 30 bytes crashes the reader, and
five bytes claim 2 GB. A child trusts the server.

The server does not trust a child. A header to the server is JSON, which the server reads by orjson: time and memory are
proportional to the bytes received (at most 30 bytes of memory for each), nesting is bounded, and no value is harmful.
A child writes by orjson where its interpreter has it. Measured for one response of one tensor: 0.4 µs to write (2 to
4 µs by the standard library), 0.4 µs to read; marshal takes 0.3 µs each. Validating marshal before loading takes
2.5 µs in Python. JSON has neither NaN nor infinities; they travel as "nan", "inf" and "-inf", which readers of a float
accept. Unpaired surrogates become `?`.
"""

from __future__ import annotations

import json
import marshal
import math
import struct
from typing import Any, Callable, List, Sequence, Tuple, Union

try:
    import orjson
except ImportError:  # the interpreter is a model's
    orjson = None  # type: ignore[assignment]

Buffer = Union[bytes, bytearray, memoryview]
Message = Tuple[Any, ...]
Frame = Tuple[Message, memoryview]

PREFIX = struct.Struct("<IQ")
MAX_HEADER_SIZE = 1 << 26
MAX_PAYLOAD_SIZE = 1 << 38

# Limits of frames from a child. Parsing a header takes tens of milliseconds at most: values cost more than characters.
MAX_CHILD_HEADER_SIZE = 1 << 24
MAX_TEXT = 1 << 14  # characters of errors and messages of the log
MAX_VALUES = 100_000
# Outputs that do not fit the shared memory.
MAX_CHILD_PAYLOAD_SIZE = 1 << 31

# Bytes of one read, for many small frames. malloc would map and unmap a buffer of more than 128 KiB at every read.
READ_SIZE = 1 << 16

_MARSHAL_VERSION = 2
_NO_PAYLOAD = memoryview(b"")
# Smaller pieces of an incomplete frame are joined at once: each would cost several times its size.
_SMALL_PIECE = 1 << 12

_JSON = json.JSONEncoder(ensure_ascii=False, check_circular=False, allow_nan=False, separators=(",", ":"))


def _json_writer() -> Callable[[Any], str]:
    """Return `_JSON.encode` without the encoder that it makes for each text: 1 µs, a third of a small message."""
    make: Any = getattr(json.encoder, "c_make_encoder", None)
    try:
        pieces = make(None, _JSON.default, json.encoder.encode_basestring, None, ":", ",", False, False, False)
    except TypeError:  # there is none in this Python, or another one
        return _JSON.encode
    return lambda value: "".join(pieces(value, 0))


_json = _json_writer()
# Types that the standard library refuses.
_ORJSON_OPTIONS = 0 if orjson is None else orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


class WireError(Exception):
    """The stream is malformed."""


def shortened(text: str) -> str:
    """Return a text of an error or for the log with at most `MAX_TEXT` characters: its beginning and its end."""
    if len(text) <= MAX_TEXT:
        return text
    half = MAX_TEXT // 2 - 32
    return "{} … ({} characters omitted) … {}".format(text[:half], len(text) - 2 * half, text[-half:])


def encode_to_child(message: Message, payload: Sequence[Any] = (), payload_size: int = 0) -> bytes:
    """Return one frame from the server. `payload` is a list of buffers with `payload_size` bytes in total.

    Raises ValueError for a message with other types than numbers, strings, bytes, None, and tuples, lists and dicts.
    """
    return _frame(marshal.dumps(message, _MARSHAL_VERSION), payload, payload_size)


def encode_to_server(
    message: Message, payload: Sequence[Any] = (), payload_size: int = 0, max_values: int = MAX_VALUES
) -> bytes:
    """Return one frame from a child. `payload` is as in `encode_to_child`.

    Raises ValueError for a message that exceeds a limit, or with other types than numbers, strings, None, tuples,
    lists, and dicts with strings as keys.
    """
    header = _header(message)
    if len(header) > MAX_CHILD_HEADER_SIZE or exceeds(header, max_values):
        text = "a message of {} bytes exceeds the limit of {} bytes or {} values"
        raise ValueError(text.format(len(header), MAX_CHILD_HEADER_SIZE, max_values))
    if payload_size > MAX_CHILD_PAYLOAD_SIZE:
        text = (
            "tensors of {} bytes, which the shared memory has no room for, exceed the limit of {} bytes for one "
            "message; raise --backend-config=python,shm-limit-byte-size=<bytes>"
        )
        raise ValueError(text.format(payload_size, MAX_CHILD_PAYLOAD_SIZE))
    return _frame(header, payload, payload_size)


def _header(message: Message) -> bytes:
    if orjson is not None:
        try:
            header: bytes = orjson.dumps(message, option=_ORJSON_OPTIONS)
        except TypeError:  # maybe only an integer of more than 64 bits, or a surrogate
            header = b"null"
        # orjson writes a float that is not finite as null, too.
        if header.find(b"null") < 0:  # faster than `in`, which tries a number first
            return header
    try:
        return _json(message).encode()
    except TypeError as error:
        raise ValueError(str(error)) from None
    except ValueError:  # a float that is not finite, or a surrogate
        return _json(_finite(message)).encode(errors="replace")


def exceeds(header: bytes, max_values: int) -> bool:
    """Return whether JSON may hold more values than that. Commas and brackets in strings count as well."""
    if len(header) <= max_values:
        return False
    return header.count(b",") + header.count(b"[") + header.count(b"{") > max_values


def _frame(header: bytes, payload: Sequence[Any], payload_size: int) -> bytes:
    prefix = PREFIX.pack(len(header), payload_size)
    if not payload_size:
        return prefix + header
    return b"".join((prefix, header, *payload))


def _finite(value: Any) -> Any:
    """Return a message with texts in place of floats that are not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(float(value))
    if isinstance(value, (tuple, list)):
        return [_finite(item) for item in value]
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return value


def parse_from_server(header: bytes) -> Message:
    """Return the message of a frame from the server. Raises WireError."""
    try:
        message = marshal.loads(header)  # noqa: S302 - the server is trusted
    except (ValueError, EOFError, TypeError) as error:
        raise WireError("unreadable header: {}".format(error)) from None
    if not isinstance(message, tuple) or not message:
        raise WireError("a header must be a non-empty tuple, not {!r:.40}".format(message))
    return message


class FrameDecoder:
    """Splits a stream into frames. Buffers at most one incomplete frame.

    `parse` reads a header, by default one from the server. Headers and payloads are limited in size.
    """

    __slots__ = ("_buffered", "_max_payload", "_needed", "_parse", "_pieces", "max_header")

    def __init__(
        self,
        parse: Callable[[bytes], Message] = parse_from_server,
        max_header: int = MAX_HEADER_SIZE,
        max_payload: int = MAX_PAYLOAD_SIZE,
    ) -> None:
        self.max_header = max_header
        self._parse = parse
        self._max_payload = max_payload
        self._pieces: List[bytes] = []
        self._buffered = 0
        self._needed = PREFIX.size

    def feed(self, data: bytes) -> List[Frame]:
        """Add received data and return the frames that it completes. Payloads are views on the data.

        Raises WireError for a malformed frame.
        """
        pieces = self._pieces
        if pieces:
            self._buffered += len(data)
            if self._buffered < self._needed:
                if len(data) < _SMALL_PIECE > len(pieces[-1]):
                    pieces[-1] += data
                else:
                    pieces.append(data)
                return []
            pieces.append(data)
            data = b"".join(pieces)
            pieces.clear()
        frames: List[Frame] = []
        position, end, needed = 0, len(data), PREFIX.size
        while end - position >= needed:
            header_size, payload_size = PREFIX.unpack_from(data, position)
            if header_size > self.max_header or payload_size > self._max_payload:
                raise WireError("header of {} or payload of {} bytes is too large".format(header_size, payload_size))
            start = position + PREFIX.size
            middle = start + header_size
            stop = middle + payload_size
            if stop > end:
                needed = stop - position
                break
            message = self._parse(data[start:middle])
            frames.append((message, memoryview(data)[middle:stop] if payload_size else _NO_PAYLOAD))
            position = stop
        self._buffered = end - position
        if self._buffered:
            self._needed = needed
            pieces.append(data[position:])
        return frames

    def clear(self) -> None:
        """Drop the incomplete frame: the stream has ended."""
        self._pieces.clear()
        self._buffered = 0
