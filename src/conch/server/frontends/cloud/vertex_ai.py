"""The port of Vertex AI: a path for health and one for all else, with names that the platform sets in the environment.

Requests go to the default model, or, with the header `X-Vertex-Ai-Triton-Redirect`, to the path of the HTTP port that
it names.
"""

from conch.base.errors import ConfigError
from conch.protocols.http.errors import V2, send_refusal
from conch.protocols.http.message import HttpRefusal, HttpRequest
from conch.protocols.http.reply import HttpReply
from conch.protocols.http.router import Router
from conch.server.core.inference import Inference
from conch.server.frontends.cloud.platform_request import refused, translated
from conch.server.frontends.parts import Parts

_BINARY = b"application/vnd.vertex-ai-triton.binary+json;json-header-size="
_REDIRECT = b"x-vertex-ai-triton-redirect"
_METRICS = "/metrics"
# What is not reachable by a redirect, as in Triton: settings of the server.
_WITHHELD = ("trace", "logging", "limits", "debug")


class VertexAiHttp:
    """Handler of the port of Vertex AI. `v2` and `metrics` answer translated requests: those of the other ports."""

    def __init__(self, parts: Parts, v2: Router, metrics: Router) -> None:
        """Create the handler. Raises ConfigError if the platform's variables are missing."""
        variables = dict(parts.options.platform_variables)
        for name in ("AIP_PREDICT_ROUTE", "AIP_HEALTH_ROUTE"):
            if not variables.get(name):
                raise ConfigError(f"{name} is not defined for Vertex AI endpoint; Vertex AI sets this variable")
        self._predict, self._health = variables["AIP_PREDICT_ROUTE"], variables["AIP_HEALTH_ROUTE"]
        self._default_model = parts.options.vertex_ai_default_model
        self._inference: Inference = parts.inference
        self._access = parts.http_access
        self._v2 = v2
        self._metrics = metrics

    def body_limit(self, request: HttpRequest) -> int:
        """Return how large the body of this request may be, in bytes."""
        handler, inner = self._routed(request)
        return handler.body_limit(inner)

    def refusal(self, request: HttpRequest) -> HttpRefusal | None:
        """Return why a request is refused whatever its body is; None if that depends on the body."""
        try:
            handler, inner = self._routed(request)
        except HttpRefusal as refusal:
            return refusal
        return handler.refusal(inner)

    def __call__(self, request: HttpRequest, reply: HttpReply) -> None:
        """Answer one request."""
        try:
            handler, inner = self._routed(request)
        except HttpRefusal as refusal:
            send_refusal(reply, refusal)
        else:
            handler(inner, reply)

    def _routed(self, request: HttpRequest) -> tuple[Router, HttpRequest]:
        """Return the handler and the request that it gets. Raises HttpRefusal."""
        if request.path == self._health:
            return self._v2, translated(request, request.method, "/v2/health/ready", _BINARY)
        if request.path != self._predict:
            raise refused(400)
        redirect = request.headers.get(_REDIRECT)
        if redirect is None:
            return self._v2, translated(request, request.method, f"/v2/models/{self._model(request)}/infer", _BINARY)
        if request.method != b"POST":
            raise refused(405)
        path = "/" + redirect.decode("latin-1")
        if path == _METRICS:
            return self._metrics, translated(request, b"GET", path, _BINARY)
        served = self._v2.served(path)
        if not path.startswith("/v2") or not served or served[0].category in _WITHHELD:
            raise refused(400)
        methods = [method for route in served for method in route.methods]
        return self._v2, translated(request, b"POST" if b"POST" in methods else b"GET", path, _BINARY)

    def _model(self, request: HttpRequest) -> str:
        """Return the default model. Raises HttpRefusal if none is chosen."""
        if self._default_model:
            return self._default_model
        names = {model.config.name for model in self._inference.models()}
        if len(names) != 1:
            denied = self._access.denied_http("inference", request)  # without a key, the number of models is unknown
            if denied is not None:
                raise V2.denied(request, denied)
            raise HttpRefusal(
                400,
                "Expect the model repository contains only a single model if default model is not specified; "
                "--vertex-ai-default-model names it",
            )
        return names.pop()
