"""Anthropic's Messages API: its dialects, errors and keys."""

from uuid import uuid4

from conch.base.errors import ConchError
from conch.protocols.anthropic import replies
from conch.protocols.anthropic.requests import MessagesCall, counted, join_message, read_message
from conch.protocols.generation_form import JSON, CountForm, GenerationForm
from conch.protocols.http.errors import retry_after
from conch.protocols.http.message import HttpRefusal, HttpRequest
from conch.server.frontends.offload.pool import Outcome
from conch.server.frontends.openai.errors import refusal_of
from conch.server.frontends.openai.generations import AdmittedCall, Dialect

_KEY, _AUTHORIZATION = b"x-api-key", b"authorization"


def refusal(error: ConchError, status: int | None = None, code: str | None = None) -> HttpRefusal:
    """Return the answer to a request that is refused with an error, in Anthropic's form."""
    status = refusal_of(error, status, code).status
    request_id = _request_id()
    headers = JSON + retry_after(error) + replies.request_header(request_id)
    return HttpRefusal(status, error.message, headers, replies.encode_error(error, status, request_id))


def use_key(request: HttpRequest) -> str:
    """Make the key of the header `x-api-key` the request's bearer token; return why the key is refused, or ""."""
    values = [value.strip() for name, value in request.fields if name.lower() == _KEY]
    if not values:
        return ""
    sent = [value.partition(b" ")[2].strip() for name, value in request.fields if name.lower() == _AUTHORIZATION]
    if any(value != values[0] for value in (*values, *sent)):
        return "the headers x-api-key and Authorization have different API keys; send one of them"
    if not sent:
        request.headers[_AUTHORIZATION] = b"Bearer " + values[0]
        request.fields.append((_AUTHORIZATION, request.headers[_AUTHORIZATION]))
    return ""


def _request_id() -> str:
    return f"req_{uuid4().hex[:24]}"


def _joined(outcome: Outcome) -> MessagesCall:
    return join_message(outcome.meta, outcome.parts)


def _form(call: MessagesCall, admitted: AdmittedCall, _echoed: str) -> GenerationForm:
    return replies.MessageForm(
        f"msg_{admitted.id}", _request_id(), call.model, call.params.max_tokens, call.params.stop
    )


def _count_form(_call: MessagesCall, _admitted: AdmittedCall, _echoed: str) -> GenerationForm:
    return CountForm({}, JSON + replies.request_header(_request_id()))


MESSAGES = Dialect(job="message", read=read_message, join=_joined, form=_form, refusal=refusal)
COUNTS = Dialect(
    job="message",
    read=lambda body: counted(read_message(body)),
    join=lambda outcome: counted(_joined(outcome)),
    form=_count_form,
    refusal=refusal,
)
