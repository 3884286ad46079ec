# Compiled by mypyc in wheels.
"""Messages of gRPC as the load generator writes and reads them, without protobuf's classes."""

from typing import Final

from conch.measure.bench.generator import PreparedRequest, ResponseKind
from conch.measure.bench.records import RequestOutcome
from conch.protocols.http2.frames import ErrorCode

_NAMES = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
    "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip
_CLIENT_ERRORS = ("INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "FAILED_PRECONDITION",
                  "OUT_OF_RANGE", "UNIMPLEMENTED", "UNAUTHENTICATED")  # fmt: skip
_REJECTIONS = ("RESOURCE_EXHAUSTED", "UNAVAILABLE")
PREFIX_BYTES: Final = 5

_VARINT: Final = 0
_FIXED_64: Final = 1
_SIZED: Final = 2
_FIXED_32: Final = 5
_ERROR_MESSAGE: Final = 1 << 3 | _SIZED
_INFER_RESPONSE: Final = 2 << 3 | _SIZED
_ID: Final = 3 << 3 | _SIZED
_PARAMETERS: Final = 4 << 3 | _SIZED
_OUTPUTS: Final = 5 << 3 | _SIZED
_RAW_OUTPUTS: Final = 6 << 3 | _SIZED
_REQUEST_ID: Final = _ID
_MAX_VARINT_BYTES: Final = 10

# An entry of `parameters` begins with its key, as all implementations write it.
_FINAL_KEY: Final = b"\x0a\x15triton_final_response"
_FINAL_ON: Final = b"\x12\x02\x08\x01"
# Asks a decoupled model to end with a message even if it has no outputs.
_EMPTY_FINAL: Final = b"triton_enable_empty_final_response"
_ASK_EMPTY_FINAL: Final = b"\x22\x28\x0a\x22" + _EMPTY_FINAL + b"\x12\x02\x08\x01"


def grpc_status_name(status: int) -> str:
    """Return the name of a grpc-status."""
    return _NAMES[status] if 0 <= status < len(_NAMES) else f"grpc-status {status}"


def grpc_outcome(status: int) -> int:
    """Return the RequestOutcome of a grpc-status."""
    name = grpc_status_name(status)
    if name == "OK":
        return int(RequestOutcome.OK)
    if name in _CLIENT_ERRORS:
        return int(RequestOutcome.CLIENT_ERROR)
    return int(RequestOutcome.REJECTED if name in _REJECTIONS else RequestOutcome.SERVER_ERROR)


def http_status_outcome(status: int) -> int:
    """Return the RequestOutcome of an answer that has an HTTP status other than 200, and no grpc-status."""
    if status in (429, 502, 503, 504):
        return int(RequestOutcome.REJECTED)
    return int(RequestOutcome.CLIENT_ERROR if 400 <= status < 500 else RequestOutcome.SERVER_ERROR)


def reset_outcome(code: int) -> int:
    """Return the RequestOutcome of a stream that the server has reset."""
    if code in (ErrorCode.REFUSED_STREAM, ErrorCode.ENHANCE_YOUR_CALM):
        return int(RequestOutcome.REJECTED)
    return int(RequestOutcome.CONNECTION_ERROR)


def message_prefix(size: int) -> bytes:
    """Return what precedes an uncompressed message of `size` bytes."""
    return b"\0" + size.to_bytes(4, "big")


def encode_grpc(request: PreparedRequest) -> bytes:
    """Return a unary message with its prefix, or that of a stream without, as its identifier is added later."""
    body = request.body
    if request.response != ResponseKind.GRPC_STREAM:
        return message_prefix(len(body)) + body
    return body if _EMPTY_FINAL in body else body + _ASK_EMPTY_FINAL


def with_id(message: bytes, number: bytes) -> bytes:
    """Return a ModelInferRequest with its prefix and an identifier; of several the last one counts."""
    size = len(message) + 2 + len(number)
    return b"".join((message_prefix(size), message, bytes((_REQUEST_ID, len(number))), number))


class StreamResponse:
    """What the generator needs of a ModelStreamInferResponse; one object reads one message after the other."""

    def __init__(self) -> None:
        self._at = 0
        self.error = ""
        self.id = b""
        self.final = -1  # triton_final_response: 0 or 1, -1 without it
        self.outputs = 0
        self.content_bytes = 0  # of the raw outputs
        self.infer_start = 0  # where the ModelInferResponse is
        self.infer_end = 0

    def read(self, data: bytes, start: int, end: int) -> bool:
        """Read the message from `start` to `end`. False if it is not well-formed."""
        self._at = start
        self.error = ""
        self.id = b""
        self.final = -1
        self.outputs = 0
        self.content_bytes = 0
        self.infer_start = self.infer_end = end
        while self._at < end:
            tag = self._varint(data, end)
            size = self._size(data, tag, end)
            if size < 0:
                return False
            at = self._at
            if tag == _ERROR_MESSAGE:
                self.error = data[at : at + size].decode("utf-8", "replace")
            elif tag == _INFER_RESPONSE:
                self.infer_start = at
                self.infer_end = at + size
                if not self._infer_response(data, at + size):
                    return False
            self._at = at + size
        return True

    def _infer_response(self, data: bytes, end: int) -> bool:
        while self._at < end:
            tag = self._varint(data, end)
            size = self._size(data, tag, end)
            if size < 0:
                return False
            at = self._at
            if tag == _RAW_OUTPUTS:
                self.content_bytes += size
            elif tag == _OUTPUTS:
                self.outputs += 1
            elif tag == _ID:
                self.id = data[at : at + size]
            elif tag == _PARAMETERS and data.startswith(_FINAL_KEY, at):
                self.final = 1 if data.find(_FINAL_ON, at, at + size) >= 0 else 0
            self._at = at + size
        return True

    def _size(self, data: bytes, tag: int, end: int) -> int:
        """Return how many bytes the value of a field has from here, -1 if it is not well-formed."""
        kind = tag & 7
        if tag < 8:
            return -1
        if kind == _SIZED:
            size = self._varint(data, end)
        elif kind == _VARINT:
            at = self._at
            if self._varint(data, end) < 0:
                return -1
            size = self._at - at
            self._at = at
        elif kind == _FIXED_64:
            size = 8
        elif kind == _FIXED_32:
            size = 4
        else:
            return -1
        return size if size <= end - self._at else -1

    def _varint(self, data: bytes, end: int) -> int:
        """Read a number; -1 if it is not well-formed."""
        at = self._at
        value = 0
        shift = 0
        while at < end and shift < 7 * _MAX_VARINT_BYTES:
            octet = data[at]
            at += 1
            value |= (octet & 0x7F) << shift
            if octet < 0x80:
                self._at = at
                return value
            shift += 7
        return -1


def response_text(message: bytes) -> str:
    """Return the joined elements of the outputs of type BYTES of a ModelInferResponse, "" if it is not well-formed."""
    from google.protobuf.message import DecodeError

    from conch.domain.triton_messages import service_pb2  # imported with the first answer that has a text

    response = service_pb2.ModelInferResponse()
    try:
        response.ParseFromString(message)
    except DecodeError:
        return ""
    parts: list[bytes] = []
    raw = list(response.raw_output_contents)
    for index, output in enumerate(response.outputs):
        if output.datatype != "BYTES":
            continue
        if index < len(raw):
            parts += _elements(raw[index])
        else:
            parts += output.contents.bytes_contents
    return b"".join(parts).decode("utf-8", "replace")


def _elements(raw: bytes) -> list[bytes]:
    """Return BYTES elements, each after its length; what is cut off at the end is left out."""
    parts: list[bytes] = []
    at = 0
    while at + 4 <= len(raw):
        size = int.from_bytes(raw[at : at + 4], "little")
        at += 4
        parts.append(raw[at : at + size])
        at += size
    return parts
