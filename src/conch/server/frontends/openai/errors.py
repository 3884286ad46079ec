"""Errors as the OpenAI API answers them."""

from conch.base.errors import Code, ConchError
from conch.protocols.http.errors import JSON, retry_after, send_refusal, status_of
from conch.protocols.http.message import HttpRefusal
from conch.protocols.http.reply import HttpReply
from conch.protocols.openai import replies as openai_replies

__all__ = ["JSON", "refusal_of", "send_error", "send_refusal"]


def send_error(reply: HttpReply, error: ConchError, status: int | None = None, code: str | None = None) -> None:
    """Answer with an error, and with the time after which to try again where it is known."""
    send_refusal(reply, refusal_of(error, status, code))


def refusal_of(error: ConchError, status: int | None = None, code: str | None = None) -> HttpRefusal:
    """Return the answer to a request that is refused with an error."""
    body = openai_replies.error(error, code=code)
    # Unlike in Triton, what an engine cannot do is the request's fault.
    usual = 400 if error.code is Code.UNSUPPORTED else status_of(error)
    return HttpRefusal(status or usual, error.message, JSON + retry_after(error), body)
