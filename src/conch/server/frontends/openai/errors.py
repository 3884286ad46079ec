"""Errors as the OpenAI API answers them."""

from collections.abc import Iterable
from itertools import islice

from conch.base.errors import Code, ConchError, ModelLoading, NotFound, Unavailable
from conch.protocols.http.errors import JSON, retry_after, send_refusal, status_of
from conch.protocols.http.message import HttpRefusal, HttpRequest
from conch.protocols.http.reply import HttpReply
from conch.protocols.openai import replies as openai_replies
from conch.server.core.inference import Inference

__all__ = ["JSON", "absent", "is_messages", "refusal_of", "send_error", "send_refusal"]

_MAX_NAMES = 10
_MESSAGES, _MODELS = "/v1/messages", "/v1/models"


def is_messages(request: HttpRequest) -> bool:
    """Whether a request belongs to Anthropic's API. `/v1/models` does for its clients, which send their version."""
    path = request.path.removeprefix("/openai")
    return path.startswith(_MESSAGES) or (path.startswith(_MODELS) and b"anthropic-version" in request.headers)


def send_error(reply: HttpReply, error: ConchError, status: int | None = None) -> None:
    """Answer with an error, and with the time after which to try again where it is known."""
    send_refusal(reply, refusal_of(error, status))


def refusal_of(error: ConchError, status: int | None = None, code: str | None = None) -> HttpRefusal:
    """Return the answer to a request that is refused with an error."""
    body = openai_replies.error(error, code=code)
    # Unlike in Triton, what an engine cannot do is the request's fault.
    usual = 400 if error.code is Code.UNSUPPORTED else status_of(error)
    return HttpRefusal(status or usual, error.message, JSON + retry_after(error), body)


def absent(inference: Inference, name: str, error: ConchError, served: Iterable[str]) -> ConchError:
    """Return the error of a call for a model that is not served, from the core's `error`.

    `served` are the names of the models that the call could be for, as far as the client may know them.
    """
    state = inference.unserved(name)
    if isinstance(error, ModelLoading):
        return ModelLoading(state or error.message, retry_after_s=error.retry_after_s)
    if isinstance(error, Unavailable):
        return error
    if state:
        return NotFound(f"The model `{name}` is not served: {state}")
    return NotFound(f"The model `{name}` does not exist.{_listed(served)}")


def _listed(names: Iterable[str]) -> str:
    """Return which models there are, " …", or "" if they are unknown."""
    known = sorted(set(names))
    if not known:
        return ""
    shown = ", ".join(f"`{name}`" for name in islice(known, _MAX_NAMES))
    more = f" and {len(known) - _MAX_NAMES} others" if len(known) > _MAX_NAMES else ""
    return f" Served models: {shown}{more}."
