"""Errors as HTTP answers: the one table of status codes, and the body that every error has."""

from math import ceil

from conch.errors import Code, ConchError
from conch.frontends.http_message import content_type, header
from conch.frontends.http_reply import HttpReply
from conch.protocol import documents

JSON = content_type(b"application/json")

# Triton's: a request that cannot be right is 400, whichever of its codes says so.
STATUS = {
    Code.UNKNOWN: 400,
    Code.INTERNAL: 500,
    Code.NOT_FOUND: 404,
    Code.INVALID_ARG: 400,
    Code.UNAVAILABLE: 503,
    Code.UNSUPPORTED: 501,
    Code.ALREADY_EXISTS: 400,
    Code.CANCELLED: 400,
}


def send_error(reply: HttpReply, error: ConchError) -> None:
    """Answer with an error, and with the time after which to try again where it is known."""
    headers = JSON
    if error.retry_after_s is not None:
        headers += header(b"Retry-After", b"%d" % max(ceil(error.retry_after_s), 1))
    reply.send(STATUS[error.code], headers, documents.error(error.message))


def send_not_found(reply: HttpReply) -> None:
    """Answer that there is nothing at this path."""
    reply.send(404, JSON, documents.error("Not Found"))


def send_wrong_method(reply: HttpReply) -> None:
    """Answer that what is at this path is not for this method."""
    reply.send(405, JSON, documents.error("Method Not Allowed"))
