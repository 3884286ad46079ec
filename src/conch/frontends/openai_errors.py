"""Errors as the OpenAI API answers them."""

from math import ceil

from conch.errors import Code, ConchError
from conch.frontends.http_errors import JSON, STATUS
from conch.frontends.http_message import header
from conch.frontends.http_reply import HttpReply
from conch.protocol import openai_replies

__all__ = ["JSON", "send_error"]

# Where they differ from Triton's: what an engine cannot do is the request's fault.
_STATUS = {**STATUS, Code.UNSUPPORTED: 400}


def send_error(reply: HttpReply, error: ConchError, status: int | None = None, code: str | None = None) -> None:
    """Answer with an error, and with the time after which to try again where it is known."""
    headers = JSON
    if error.retry_after_s is not None:
        headers += header(b"Retry-After", b"%d" % max(ceil(error.retry_after_s), 1))
    reply.send(status or _STATUS[error.code], headers, openai_replies.error(error, code=code))
