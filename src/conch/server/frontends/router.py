# Compiled by mypyc in wheels.
"""The handlers of the two HTTP ports, which share the OpenAI API.

The HTTP port: Triton's protocol, the OpenAI API below `/v1/` and `/openai/v1/`, and vLLM's own paths. Clients and
probes written for vLLM find its paths on the port of its API, which is this one as well. Those written for KServe's
runtime for language models find the API below `/openai/`.

The OpenAI port: the OpenAI API, health, metrics and version. Paths are those of Triton's OpenAI frontend
(`/health/ready`, `/metrics`) and of vLLM's server (`/health`, `/ping`, `/version`), so that probes and scrapers for
either work.
"""

from typing import Final

import orjson

import conch
from conch.protocols.http.message import NO_HEADERS, HttpRefusal, HttpRequest
from conch.protocols.http.metrics_page import MetricsHttp
from conch.protocols.http.reply import HttpReply
from conch.server.core.inference import Inference
from conch.server.frontends.openai.errors import JSON, send_refusal
from conch.server.frontends.openai.routes import DETOKENIZE, PREFIX, TOKENIZE, OpenAiHttp, wrong_method
from conch.server.frontends.v2_http.routes import V2Http

_KSERVE: Final = "/openai"
_VLLM: Final = frozenset({"/health", "/ping", "/version", TOKENIZE, DETOKENIZE})
# The status of a server that is not ready: Triton's, and vLLM's.
_NOT_READY: Final = {"/health/ready": 400, "/health": 503, "/ping": 503}
_OWN_PATHS: Final = frozenset({*_NOT_READY, "/health/live", "/version"})


class OpenAiServerRoutes:
    """Handler of the OpenAI port. `metrics` answers `/metrics`; None where that page is not served."""

    def __init__(self, inference: Inference, openai: OpenAiHttp, metrics: MetricsHttp | None = None) -> None:
        self._inference = inference
        self._openai = openai
        self._metrics = metrics

    def refusal(self, request: HttpRequest) -> HttpRefusal | None:
        """Return why a request is refused whatever its body is; None if that depends on the body."""
        if request.path in _OWN_PATHS:
            return self._openai.denied("health", request) if request.method == b"GET" else wrong_method(request)
        if request.path == "/metrics" and self._metrics is not None:
            return self._metrics.refusal(request)
        return self._openai.refusal(request)

    def body_limit(self, request: HttpRequest) -> int:
        """Return how large the body of this request may be, in bytes."""
        return self._openai.body_limit(request)

    def __call__(self, request: HttpRequest, reply: HttpReply) -> None:
        """Answer one request."""
        path, refusal = request.path, self.refusal(request)
        if refusal is not None:
            send_refusal(reply, refusal)
        elif path == "/version":
            reply.send(200, JSON, orjson.dumps({"version": conch.__version__}))
        elif path in _OWN_PATHS:
            ready = path == "/health/live" or self._inference.ready()
            reply.send(200 if ready else _NOT_READY[path], NO_HEADERS)
        elif path == "/metrics" and self._metrics is not None:
            self._metrics(request, reply)
        else:
            self._openai(request, reply)


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
