"""Errors as HTTP answers: the table of status codes, and the bodies."""

from collections.abc import Callable
from math import ceil
from typing import NamedTuple

from conch.base.errors import Code, ConchError, DeadlineMissed, LimitExceeded, TooLarge
from conch.protocols.access.authorization import Denial, Denied
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
    if isinstance(error, DeadlineMissed) and error.passed:
        return 504
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


class ErrorForm(NamedTuple):
    """How a family of endpoints writes refusals and errors.

    `denied` writes why a client may not call, `refused` a refusal with a status, `not_found` that the path does not
    exist, `wrong_method` that it lacks the method; `send` sends the error of a handler. `openai`: whether OpenAI API
    keys protect all endpoints. `use_key` is called before keys are checked, to take one from another header, and
    returns why the request is refused, or "".
    """

    denied: Callable[[HttpRequest, Denied], HttpRefusal]
    refused: Callable[[HttpRequest, int, str], HttpRefusal]
    not_found: Callable[[HttpRequest], HttpRefusal]
    wrong_method: Callable[[HttpRequest], HttpRefusal]
    send: Callable[[HttpRequest, HttpReply, ConchError], None]
    openai: bool = False
    use_key: Callable[[HttpRequest], str] | None = None


_DENIED = {Denial.RESTRICTED: 403, Denial.NO_KEY: 401, Denial.SCOPE: 403, Denial.REPEATED: 400}
CHALLENGE = header(b"WWW-Authenticate", b"Bearer")


def _denied(_request: HttpRequest, denied: Denied) -> HttpRefusal:
    return HttpRefusal(_DENIED[denied.why], denied.message, CHALLENGE if denied.why is Denial.NO_KEY else b"")


def _refused(_request: HttpRequest, status: int, text: str) -> HttpRefusal:
    return HttpRefusal(status, text)


def _not_found(_request: HttpRequest) -> HttpRefusal:
    return HttpRefusal(404, "Not Found")


def _wrong_method(_request: HttpRequest) -> HttpRefusal:
    return HttpRefusal(405, "Method Not Allowed")


def _send(_request: HttpRequest, reply: HttpReply, error: ConchError) -> None:
    send_error(reply, error)


V2 = ErrorForm(_denied, _refused, _not_found, _wrong_method, _send)
