"""What a status of gRPC, HTTP or HTTP/2 says of a request."""

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
