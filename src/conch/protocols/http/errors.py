"""Errors as HTTP answers: the table of status codes, and the bodies."""

from math import ceil

from conch.base.errors import Code, ConchError, LimitExceeded, TooLarge
from conch.protocols.access.authorization import Access, Denial
from conch.protocols.compression import SUPPORTED, UnknownCoding
from conch.protocols.http.message import HttpRefusal, HttpRequest, content_type, header
from conch.protocols.http.reply import HttpReply
from conch.protocols.v2_json import documents

JSON = content_type(b"application/json")
_KNOWN_CODINGS = header(b"Accept-Encoding", SUPPORTED)

# As in Triton: every error of the request is 400, whatever its code.
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


def status_of(error: ConchError) -> int:
    """Return the status of an error."""
    if isinstance(error, TooLarge):
        return 413
    return 429 if isinstance(error, LimitExceeded) else STATUS[error.code]


def send_error(reply: HttpReply, error: ConchError, status: int = 0) -> None:
    """Answer with an error, with `Retry-After` where it is known, and the codings that an unknown one could be.

    `status` replaces that of the error.
    """
    headers = JSON + retry_after(error)
    if isinstance(error, UnknownCoding):
        headers += _KNOWN_CODINGS
    reply.send(status or status_of(error), headers, documents.error(error.message))


def retry_after(error: ConchError) -> bytes:
    """Return the header line `Retry-After` in whole seconds; empty where the error has no such time."""
    if error.retry_after_s is None:
        return b""
    return header(b"Retry-After", b"%d" % max(ceil(error.retry_after_s), 1))


def send_refusal(reply: HttpReply, refusal: HttpRefusal) -> None:
    """Answer with a refusal; the connection stays open."""
    reply.send(refusal.status, *refusal.content())


def send_not_found(reply: HttpReply) -> None:
    """Answer that there is nothing at this path."""
    send_refusal(reply, not_found())


_DENIED = {Denial.RESTRICTED: 403, Denial.NO_KEY: 401, Denial.SCOPE: 403, Denial.REPEATED: 400}
CHALLENGE = header(b"WWW-Authenticate", b"Bearer")


def access_refusal(access: Access, category: str, request: HttpRequest) -> HttpRefusal | None:
    """Return the refusal of a client that may not call a category, None if it may."""
    denied = access.denied_http(category, request)
    if denied is None:
        return None
    return HttpRefusal(_DENIED[denied.why], denied.message, CHALLENGE if denied.why is Denial.NO_KEY else b"")


def not_found() -> HttpRefusal:
    """Return the refusal of a path where there is nothing."""
    return HttpRefusal(404, "Not Found")


def wrong_method() -> HttpRefusal:
    """Return the refusal of a method that the path does not have."""
    return HttpRefusal(405, "Method Not Allowed")
