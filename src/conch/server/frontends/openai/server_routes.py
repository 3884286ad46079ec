"""The OpenAI port: the OpenAI API, health, metrics and version.

Paths are those of Triton's OpenAI frontend (`/health/ready`, `/metrics`) and of vLLM's server (`/health`, `/ping`,
`/version`), so that probes and scrapers for either work.
"""

from collections.abc import Callable

import orjson

import conch
from conch.protocols.http.message import NO_HEADERS, HttpRefusal, HttpRequest
from conch.protocols.http.metrics_page import MetricsHttp
from conch.protocols.http.reply import HttpReply
from conch.server.core.inference import Inference
from conch.server.frontends.openai.errors import JSON, send_refusal
from conch.server.frontends.openai.routes import OpenAiHttp, wrong_method

_NOT_READY = 400  # Triton's
_NO_ENGINE = 503  # vLLM's


class OpenAiServerRoutes:
    """Handler of the OpenAI port. `metrics` answers `/metrics`; None where there are none."""

    def __init__(self, inference: Inference, openai: OpenAiHttp, metrics: MetricsHttp | None) -> None:
        self._inference = inference
        self._openai = openai
        self._metrics = metrics
        self._gets: dict[str, Callable[[HttpReply], None]] = {
            "/health/live": lambda reply: reply.send(200, NO_HEADERS),
            "/health/ready": lambda reply: self._health(reply, _NOT_READY),
            "/health": lambda reply: self._health(reply, _NO_ENGINE),
            "/ping": lambda reply: self._health(reply, _NO_ENGINE),
            "/version": lambda reply: reply.send(200, JSON, orjson.dumps({"version": conch.__version__})),
        }

    def refusal(self, request: HttpRequest) -> HttpRefusal | None:
        """Return why a request is refused whatever its body is; None if that depends on the body."""
        if request.path in self._gets:
            return self._openai.denied("health", request) if request.method == b"GET" else wrong_method(request)
        if request.path == "/metrics" and self._metrics is not None:
            return self._metrics.refusal(request)
        return self._openai.refusal(request)

    def body_limit(self, request: HttpRequest) -> int:
        """Return how large the body of this request may be, in bytes."""
        return self._openai.body_limit(request)

    def __call__(self, request: HttpRequest, reply: HttpReply) -> None:
        """Answer one request."""
        get = self._gets.get(request.path)
        refusal = self.refusal(request)
        if refusal is not None:
            send_refusal(reply, refusal)
        elif get is not None:
            get(reply)
        elif request.path == "/metrics" and self._metrics is not None:
            self._metrics(request, reply)
        else:
            self._openai(request, reply)

    def _health(self, reply: HttpReply, otherwise: int) -> None:
        reply.send(200 if self._inference.ready() else otherwise, NO_HEADERS)
