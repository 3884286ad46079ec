"""The port of an exporter: `GET /metrics`, and `GET /health` for probes."""

from collections.abc import Callable

from conch.protocols.http.message import HttpRefusal, HttpRequest, content_type
from conch.protocols.http.metrics_page import MetricsHttp
from conch.protocols.http.reply import HttpReply

_TEXT = content_type(b"text/plain; charset=utf-8")
_HEALTH = "/health"


class ExporterHttp:
    """Handler of an exporter's port. `healthy` is whether the last samples are good; /health is 503 otherwise."""

    def __init__(self, metrics: MetricsHttp, healthy: Callable[[], bool]) -> None:
        self._metrics = metrics
        self._healthy = healthy

    def refusal(self, request: HttpRequest) -> HttpRefusal | None:
        """Return why a request is refused whatever its body is; None if it is answered."""
        if request.path == _HEALTH and request.method in (b"GET", b"HEAD"):
            return None
        return self._metrics.refusal(request)

    def __call__(self, request: HttpRequest, reply: HttpReply) -> None:
        """Answer one request."""
        if request.path != _HEALTH or request.method not in (b"GET", b"HEAD"):
            self._metrics(request, reply)
        elif self._healthy():
            reply.send(200, _TEXT, b"OK\n")
        else:
            reply.send(503, _TEXT, b"no fresh sample; see conch_accelerator_collector_up and the log\n")
