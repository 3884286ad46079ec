"""Error codes of the server as status codes of gRPC, and texts in the form that a status can carry."""

from typing import NoReturn

import grpc
import grpc.aio

from conch.errors import Code, ConchError

STATUS_CODES = {
    Code.UNKNOWN: grpc.StatusCode.UNKNOWN,
    Code.INTERNAL: grpc.StatusCode.INTERNAL,
    Code.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Code.INVALID_ARG: grpc.StatusCode.INVALID_ARGUMENT,
    Code.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    Code.UNSUPPORTED: grpc.StatusCode.UNIMPLEMENTED,
    Code.ALREADY_EXISTS: grpc.StatusCode.ALREADY_EXISTS,
    Code.CANCELLED: grpc.StatusCode.CANCELLED,
}

# A status travels in the trailers, of which clients accept 8 KiB in all by default; more fails the call with a text of
# the client's own. Bytes that are not printable ASCII, and '%', are written as three.
_TEXT_LIMIT = 6000
_LEFT_OUT = " [… the rest is left out]"


async def abort(context: "grpc.aio.ServicerContext[bytes, bytes]", error: ConchError) -> NoReturn:
    """End a call with the status of an error."""
    await context.abort(STATUS_CODES[error.code], status_text(error.message))


def status_text(text: str) -> str:
    """Return the text, shortened if a status cannot carry it."""
    size = 0
    for index, character in enumerate(text):
        size += 1 if " " <= character <= "~" and character != "%" else 3 * len(character.encode(errors="replace"))
        if size > _TEXT_LIMIT:
            return text[:index] + _LEFT_OUT
    return text
