"""How paths of the OpenAI API, and of Anthropic's below it, refuse requests: in the form of the client's API."""

from conch.base.errors import ConchError, InvalidRequest, NotFound
from conch.protocols.access.authorization import MISSING_KEY, Denial, Denied
from conch.protocols.http.errors import CHALLENGE, ErrorForm, send_refusal
from conch.protocols.http.message import HttpRefusal, HttpRequest
from conch.protocols.http.reply import HttpReply
from conch.server.frontends.openai import messages
from conch.server.frontends.openai.errors import is_messages, refusal_of

_DENIED = {
    Denial.RESTRICTED: (401, "invalid_auth"),
    Denial.NO_KEY: (401, "invalid_api_key"),
    Denial.SCOPE: (403, "insufficient_permissions"),
    Denial.REPEATED: (400, None),
}

# Of TensorFlow Serving and KServe, whose models have the path of OpenAI's.
_V1_VERBS = ("predict", "explain", "classify", "regress")


def _written(
    request: HttpRequest, error: ConchError, status: int | None = None, code: str | None = None
) -> HttpRefusal:
    return (messages.refusal if is_messages(request) else refusal_of)(error, status, code)


def _denied(request: HttpRequest, denied: Denied) -> HttpRefusal:
    status, code = _DENIED[denied.why]
    if denied.message == MISSING_KEY:  # as in OpenAI's API
        code = None
    valid = " with valid value" if denied.why is Denial.RESTRICTED else ""
    refusal = _written(request, InvalidRequest(denied.message + valid), status, code)
    if denied.why is Denial.NO_KEY:
        headers, body = refusal.content()
        return HttpRefusal(status, refusal.message, headers + CHALLENGE, body)
    return refusal


def _refused(request: HttpRequest, status: int, text: str) -> HttpRefusal:
    return _written(request, InvalidRequest(text), status)


def _not_found(request: HttpRequest) -> HttpRefusal:
    error = NotFound(f"Invalid URL ({request.method.decode()} {request.path})")
    return _written(request, error, 404, "unknown_url")


def _wrong_method(request: HttpRequest) -> HttpRefusal:
    path, _, verb = request.path.rpartition(":")
    if verb in _V1_VERBS:
        instead = f"/v2/models/{path.rpartition('/')[2]}/infer"
        error = NotFound(f"the V1 protocol of {request.path} is not served: POST tensors to {instead}")
        return _written(request, error, 404, "unknown_url")
    return _refused(request, 405, f"Not allowed to {request.method.decode()} on {request.path}")


def _send(request: HttpRequest, reply: HttpReply, error: ConchError) -> None:
    send_refusal(reply, _written(request, error))


def _use_key(request: HttpRequest) -> str:
    return messages.use_key(request) if is_messages(request) else ""


OPENAI = ErrorForm(_denied, _refused, _not_found, _wrong_method, _send, openai=True, use_key=_use_key)
