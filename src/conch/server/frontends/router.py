"""The HTTP port: Triton's protocol, the OpenAI API below `/v1/` and `/openai/v1/`, and vLLM's own paths.

Clients and probes written for vLLM find its paths on the port of its API, which is this one as well. Those written for
KServe's runtime for language models find the API below `/openai/`.
"""

from conch.protocols.http.message import HttpRefusal, HttpRequest
from conch.protocols.http.reply import HttpReply
from conch.server.frontends.openai.routes import DETOKENIZE, PREFIX, TOKENIZE
from conch.server.frontends.openai.server_routes import OpenAiServerRoutes
from conch.server.frontends.v2_http.routes import V2Http

_KSERVE = "/openai"
_VLLM = frozenset({"/health", "/ping", "/version", TOKENIZE, DETOKENIZE})


class HttpRouter:
    """Handler of the HTTP port."""

    def __init__(self, v2: V2Http, openai: OpenAiServerRoutes) -> None:
        self._v2 = v2
        self._openai = openai

    def body_limit(self, request: HttpRequest) -> int:
        """Return how large the body of this request may be, in bytes."""
        return self._handler_for(request).body_limit(request)

    def refusal(self, request: HttpRequest) -> HttpRefusal | None:
        """Return why a request is refused whatever its body is; None if that depends on the body."""
        return self._handler_for(request).refusal(request)

    def __call__(self, request: HttpRequest, reply: HttpReply) -> None:
        """Answer one request."""
        self._handler_for(request)(request, reply)

    def _handler_for(self, request: HttpRequest) -> OpenAiServerRoutes | V2Http:
        if request.path.startswith(_KSERVE + PREFIX):
            request.path = request.path.removeprefix(_KSERVE)
        return self._openai if request.path.startswith(PREFIX) or request.path in _VLLM else self._v2
