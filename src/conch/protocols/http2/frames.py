# Compiled by mypyc in wheels.
"""Frames of HTTP/2 (RFC 9113, sections 4 and 6): their layout, and the small ones that a server sends."""

from enum import IntEnum
from struct import Struct
from typing import Final

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

END_STREAM: Final = 0x01
ACK: Final = 0x01
END_HEADERS: Final = 0x04
PADDED: Final = 0x08
PRIORITISED: Final = 0x20

# Parameters of SETTINGS.
HEADER_TABLE_SIZE: Final = 1
ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES: Final = 9
DEFAULT_HEADER_TABLE_BYTES: Final = 4096
DEFAULT_WINDOW_BYTES: Final = 65_535
DEFAULT_FRAME_BYTES: Final = 16_384
MAX_FRAME_BYTES: Final = 2**24 - 1
MAX_WINDOW_BYTES: Final = 2**31 - 1
MAX_STREAM_ID: Final = 2**31 - 1

# Length in 24 bits, as 8 and 16; type; flags; stream.
HEAD: Final = Struct(">BHBBL")
_SETTING: Final = Struct(">HL")
_NUMBER: Final = Struct(">L")
_GOAWAY: Final = Struct(">LL")


class ErrorCode(IntEnum):
    """Why a stream or a connection ends (section 7)."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class ConnectionFault(Exception):
    """The peer violated the protocol so that the connection must end, by GOAWAY."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(f"{code.name}: {reason}")
        self.code = code
        self.reason = reason


class StreamFault(Exception):
    """The peer violated the protocol within one stream: it ends by RST_STREAM, and other streams are not affected."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(f"{code.name}: {reason}")
        self.code = code


def frame_head(size: int, kind: int, flags: int, stream: int) -> bytes:
    """Write the header of a frame with a payload of `size` bytes."""
    return HEAD.pack(size >> 16, size & 0xFFFF, kind, flags, stream)


def settings_frame(values: dict[int, int]) -> bytes:
    """Write SETTINGS with these parameters."""
    payload = b"".join(_SETTING.pack(key, value) for key, value in values.items())
    return frame_head(len(payload), SETTINGS, 0, 0) + payload


SETTINGS_ACK: Final = frame_head(0, SETTINGS, ACK, 0)


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """Return the parameters in the order in which they are to be applied. Raises ConnectionFault."""
    if len(payload) % _SETTING.size:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes")
    return list(_SETTING.iter_unpack(payload))


def window_update_frame(stream: int, increment: int) -> bytes:
    """Allow `increment` more bytes; stream 0 is the connection."""
    return frame_head(4, WINDOW_UPDATE, 0, stream) + _NUMBER.pack(increment)


def reset_frame(stream: int, code: ErrorCode) -> bytes:
    """Write RST_STREAM."""
    return frame_head(4, RST_STREAM, 0, stream) + _NUMBER.pack(code)


def ping_frame(payload: bytes, flags: int = 0) -> bytes:
    """Write PING with eight bytes; `flags` is ACK in an answer."""
    return frame_head(8, PING, flags, 0) + payload


def goaway_frame(last_stream: int, code: ErrorCode, reason: str = "") -> bytes:
    """Write GOAWAY; streams above `last_stream` were not processed."""
    text = reason.encode("ascii", "replace")
    return frame_head(8 + len(text), GOAWAY, 0, 0) + _GOAWAY.pack(last_stream, code) + text


def read_number(payload: bytes, what: str) -> int:
    """Return the one number that a frame consists of. Raises ConnectionFault for any other size."""
    if len(payload) != _NUMBER.size:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"{what} of {len(payload)} bytes")
    number: int = _NUMBER.unpack(payload)[0]
    return number


def unpadded(flags: int, payload: bytes) -> bytes:
    """Remove padding and priority from a HEADERS frame. Raises ConnectionFault."""
    start, end = 0, len(payload)
    if flags & PADDED:
        start = 1
        end -= payload[0] if payload else 0
    if flags & PRIORITISED:
        start += 5
    if start > end:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "more padding than frame")
    return payload[start:end]


def error_name(code: int) -> str:
    """Return the name of an error code, or its number."""
    if 0 <= code <= ErrorCode.HTTP_1_1_REQUIRED:
        return ErrorCode(code).name
    return f"0x{code:x}"
