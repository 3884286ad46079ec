"""Routes of the OpenAI API, and access to them."""

import time
from collections.abc import Callable

from conch.base.errors import ConchError, InvalidRequest, NotFound
from conch.protocols.access.authorization import MISSING_KEY, Denial
from conch.protocols.http.errors import CHALLENGE
from conch.protocols.http.message import HttpRefusal, HttpRequest
from conch.protocols.http.reply import HttpReply
from conch.protocols.openai.large import MAX_REST_BYTES
from conch.server.frontends.openai import messages
from conch.server.frontends.openai.embeddings import embeddings_endpoint
from conch.server.frontends.openai.errors import refusal_of, send_refusal
from conch.server.frontends.openai.generations import CHAT, COMPLETION, Generations
from conch.server.frontends.openai.models import PATH as MODELS
from conch.server.frontends.openai.models import OpenAiModels
from conch.server.frontends.openai.tokens import TokensEndpoint
from conch.server.frontends.parts import Parts

PREFIX = "/v1/"
_DENIED = {
    Denial.RESTRICTED: (401, "invalid_auth"),
    Denial.NO_KEY: (401, "invalid_api_key"),
    Denial.SCOPE: (403, "insufficient_permissions"),
    Denial.REPEATED: (400, None),
}
TOKENIZE, DETOKENIZE = "/tokenize", "/detokenize"


class OpenAiHttp:
    """Handler of the paths of the OpenAI API. The same clients may call it as on the HTTP port."""

    def __init__(self, parts: Parts) -> None:
        self._inference = parts.inference
        self._tenants = parts.tenants
        self._access = parts.http_access
        self._observer = parts.observer
        self._prompts = parts.prompts
        self._max_input_bytes = parts.options.http_max_input_size
        self._models = OpenAiModels(parts, int(time.time()))
        tokens = TokensEndpoint(parts, self._models)
        generations = Generations(parts, self._models)
        self._posts: dict[str, Callable[[HttpRequest, HttpReply], None]] = {
            "/v1/chat/completions": generations.endpoint(CHAT),
            "/v1/completions": generations.endpoint(COMPLETION),
            messages.PREFIX: generations.endpoint(messages.MESSAGES),
            messages.COUNT: generations.endpoint(messages.COUNTS),
            "/v1/embeddings": embeddings_endpoint(parts),
            TOKENIZE: tokens.tokenize,
            DETOKENIZE: tokens.detokenize,
        }

    def __call__(self, request: HttpRequest, reply: HttpReply) -> None:
        """Answer one request, for which `refusal` is None."""
        post = self._posts.get(request.path)
        try:
            if post is not None:
                post(request, reply)
            else:
                self._models.answer(request.path, request.method, reply, anthropic=messages.is_messages(request))
        except ConchError as error:
            send_refusal(reply, _refusal_form(request)(error))

    def refusal(self, request: HttpRequest) -> HttpRefusal | None:
        """Return why a request is refused whatever its body is; None if that depends on the body."""
        path, method = request.path, request.method
        if path in self._posts:
            refusal = self.denied("inference", request)
            if refusal is not None:
                self._observer.unread_http(request, refusal)
            return refusal or (None if method == b"POST" else wrong_method(request))
        of_models = path == MODELS or path.startswith(MODELS + "/")
        refusal = self.denied("model-repository" if of_models and method != b"GET" else "metadata", request)
        if refusal is not None or (of_models and self._models.has(path, method)):
            return refusal
        return _refusal_form(request)(NotFound(f"Invalid URL ({method.decode()} {path})"), 404, "unknown_url")

    def body_limit(self, request: HttpRequest) -> int:
        """Return how large the body of this request may be, in bytes."""
        return MAX_REST_BYTES if request.path in (TOKENIZE, DETOKENIZE) else self._max_input_bytes

    def denied(self, category: str, request: HttpRequest) -> HttpRefusal | None:
        """Return the refusal of a client that may not call this category, None if it may."""
        refusal_form = _refusal_form(request)
        conflict = messages.use_key(request) if self._access and messages.is_messages(request) else ""
        if conflict:
            return refusal_form(InvalidRequest(conflict), 401)
        denied = self._access.denied_http(category, request, openai=True)
        if denied is None:
            return None
        status, code = _DENIED[denied.why]
        if denied.message == MISSING_KEY:  # as in OpenAI's API
            code = None
        valid = " with valid value" if denied.why is Denial.RESTRICTED else ""
        refusal = refusal_form(InvalidRequest(denied.message + valid), status, code)
        if denied.why is Denial.NO_KEY:
            headers, body = refusal.content()
            return HttpRefusal(status, refusal.message, headers + CHALLENGE, body)
        return refusal


def wrong_method(request: HttpRequest) -> HttpRefusal:
    """Return the refusal of a method that the path does not have."""
    error = InvalidRequest(f"Not allowed to {request.method.decode()} on {request.path}")
    return _refusal_form(request)(error, 405)


def _refusal_form(request: HttpRequest) -> Callable[..., HttpRefusal]:
    """Return what writes the errors of a request that is not a call: in the form of its API."""
    return messages.refusal if messages.is_messages(request) else refusal_of
