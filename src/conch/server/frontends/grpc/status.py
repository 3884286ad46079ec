"""Status codes of gRPC, and the trailers that carry a status and its message."""

from collections.abc import Sequence
from enum import IntEnum
from math import ceil

from conch.base.errors import Code, ConchError, DeadlineMissed, Exhausted, LimitExceeded, TooLarge
from conch.protocols.http2.header_blocks import response_block, trailers_block


class Status(IntEnum):
    """The status codes of gRPC that this server gives."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


STATUS_CODES = {
    Code.UNKNOWN: Status.UNKNOWN,
    Code.INTERNAL: Status.INTERNAL,
    Code.NOT_FOUND: Status.NOT_FOUND,
    Code.INVALID_ARG: Status.INVALID_ARGUMENT,
    Code.UNAVAILABLE: Status.UNAVAILABLE,
    Code.UNSUPPORTED: Status.UNIMPLEMENTED,
    Code.ALREADY_EXISTS: Status.ALREADY_EXISTS,
    Code.CANCELLED: Status.CANCELLED,
}

_REFUSALS = {
    Status.UNAUTHENTICATED: "unauthenticated",
    Status.PERMISSION_DENIED: "forbidden",
    Status.RESOURCE_EXHAUSTED: "too_large",
}

# Clients accept 8 KiB of trailers by default; with more the call fails with a message of the client library. Bytes that
# are not printable ASCII, and '%', are written as three.
_MAX_TEXT_BYTES = 6000
_LEFT_OUT = " [… the rest is left out]"

CONTENT_TYPE = (b"content-type", b"application/grpc")
ACCEPTED_CODINGS = (b"grpc-accept-encoding", b"identity, deflate, gzip")
_OK = (b"grpc-status", b"0")
OK_TRAILERS = trailers_block([_OK])


def ok_trailers(metadata: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return the trailers of an answer with its own metadata."""
    return trailers_block([_OK, *metadata]) if metadata else OK_TRAILERS


class GrpcError(Exception):
    """An error with a status that only gRPC has."""

    def __init__(self, status: Status, message: str, refusal: str = "") -> None:
        """Create an error. `refusal` is the reason of a refusal that the status does not tell, of `traffic.REASONS`."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.refusal = refusal or _REFUSALS.get(status, "")


def no_memory() -> GrpcError:
    """Return the refusal of a call for whose message there is no memory now."""
    message = "the memory for request bodies set by --request-memory-limit is in use; try again later"
    return GrpcError(Status.RESOURCE_EXHAUSTED, message, "unavailable")


def refusal_reason(error: ConchError | GrpcError) -> str:
    """Return why the server refuses a call, as counted by `Traffic`; empty if the error is not a refusal."""
    if isinstance(error, GrpcError):
        return error.refusal
    if isinstance(error, LimitExceeded):
        return "rate_limited"
    return "unavailable" if error.code is Code.UNAVAILABLE else ""


def status_of(error: ConchError | GrpcError) -> Status:
    """Return the status of an error."""
    if isinstance(error, GrpcError):
        return error.status
    # No retry at another replica can meet a deadline that is shorter than the execution.
    if isinstance(error, DeadlineMissed) and (error.passed or error.retry_after_s is None):
        return Status.DEADLINE_EXCEEDED
    return (
        Status.RESOURCE_EXHAUSTED
        if isinstance(error, Exhausted | LimitExceeded | TooLarge)
        else STATUS_CODES[error.code]
    )


def error_fields(error: ConchError | GrpcError) -> list[tuple[bytes, bytes]]:
    """Return the trailers of an error, with the time after which to retry where it is known."""
    status = status_of(error)
    # gRPC's own words, which clients look for.
    missed = status is Status.DEADLINE_EXCEEDED and isinstance(error, DeadlineMissed)
    text = f"Deadline Exceeded: {error.message}" if missed else error.message
    fields = [(b"grpc-status", b"%d" % status), (b"grpc-message", _percent_encoded(status_text(text)))]
    if isinstance(error, ConchError) and error.retry_after_s is not None:
        seconds = max(ceil(error.retry_after_s), 1)
        # The first is for gRPC's own retries, the second equals the HTTP header.
        fields += [(b"grpc-retry-pushback-ms", b"%d000" % seconds), (b"retry-after", b"%d" % seconds)]
    return fields


def error_trailers(error: ConchError | GrpcError, metadata: Sequence[tuple[bytes, bytes]] = ()) -> bytes:
    """Return the block that ends an answer of which something was sent."""
    return trailers_block([*error_fields(error), *metadata])


def error_block(error: ConchError | GrpcError, metadata: Sequence[tuple[bytes, bytes]] = ()) -> bytes:
    """Return the block that is the whole answer to a call that failed."""
    return response_block(200, [CONTENT_TYPE, *error_fields(error), *metadata])


def status_text(text: str) -> str:
    """Return the text, shortened if a status cannot carry it."""
    size = 0
    for index, character in enumerate(text):
        size += 1 if " " <= character <= "~" and character != "%" else 3 * len(character.encode(errors="replace"))
        if size > _MAX_TEXT_BYTES:
            return text[:index] + _LEFT_OUT
    return text


def _percent_encoded(text: str) -> bytes:
    if text.isascii() and text.isprintable() and "%" not in text:
        return text.encode()
    return b"".join(
        bytes((octet,)) if 0x20 <= octet <= 0x7E and octet != 0x25 else b"%%%02X" % octet
        for octet in text.encode(errors="replace")
    )
