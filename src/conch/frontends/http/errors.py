"""Errors as HTTP answers: the one table of status codes, and the body that every error has."""

from math import ceil

from conch.errors import Code, ConchError
from conch.frontends.access import Denial, Denied
from conch.frontends.http.message import HttpRefusal, content_type, header
from conch.frontends.http.reply import HttpReply
from conch.protocol.v2_json import documents

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


def send_refusal(reply: HttpReply, refusal: HttpRefusal) -> None:
    """Answer with a refusal; the connection goes on."""
    reply.send(refusal.status, *refusal.content())


def send_not_found(reply: HttpReply) -> None:
    """Answer that there is nothing at this path."""
    send_refusal(reply, not_found())


_DENIED = {Denial.RESTRICTED: 403, Denial.NO_KEY: 401, Denial.SCOPE: 403, Denial.REPEATED: 400}
CHALLENGE = header(b"WWW-Authenticate", b"Bearer")


def denial(denied: Denied) -> HttpRefusal:
    """Return the refusal of a client that may not call."""
    return HttpRefusal(_DENIED[denied.why], denied.message, CHALLENGE if denied.why is Denial.NO_KEY else b"")


def not_found() -> HttpRefusal:
    """Return the refusal of a path where there is nothing."""
    return HttpRefusal(404, "Not Found")


def wrong_method() -> HttpRefusal:
    """Return the refusal of a method that the path does not have."""
    return HttpRefusal(405, "Method Not Allowed")
