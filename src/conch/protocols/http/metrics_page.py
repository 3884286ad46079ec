"""The metrics port: `GET /metrics` for Prometheus, and a page that links to it."""

from collections.abc import Callable, Iterator

from conch.domain.openmetrics import CONTENT_TYPE, is_preferred
from conch.protocols.access.authorization import Access
from conch.protocols.http.errors import access_refusal, not_found, send_refusal, wrong_method
from conch.protocols.http.long_replies import send_in_slices
from conch.protocols.http.message import HttpRefusal, HttpRequest, content_type
from conch.protocols.http.reply import HttpReply

_EXPOSITION = content_type(b"text/plain; version=0.0.4; charset=utf-8")
_OPENMETRICS = content_type(CONTENT_TYPE)
_HTML = content_type(b"text/html; charset=utf-8")
_PATHS = ("/metrics", "/metrics/")
_PAGE = b"""<!DOCTYPE html>
<html lang="en">
<head><title>Conch metrics</title></head>
<body><h1>Conch metrics</h1><ul><li><a href="/metrics">/metrics</a>: metrics for Prometheus</li></ul></body>
</html>
"""


class MetricsHttp:
    """Handler of the metrics port."""

    def __init__(
        self,
        exposition: Callable[[], Iterator[bytes]],
        access: Access | None = None,
        openmetrics: Callable[[], Iterator[bytes]] | None = None,
    ) -> None:
        """`exposition` yields the text of a scrape (format 0.0.4) in pieces, `openmetrics` in OpenMetrics."""
        self._openmetrics = openmetrics
        self._access = access or Access()
        self._exposition = exposition

    def refusal(self, request: HttpRequest) -> HttpRefusal | None:
        """Return why a request is refused whatever its body is; None if it is answered."""
        refusal = access_refusal(self._access, "metrics", request)
        if refusal is not None:
            return refusal
        if request.path not in _PATHS and request.path != "/":
            return not_found()
        return None if request.method in (b"GET", b"HEAD") else wrong_method()

    def __call__(self, request: HttpRequest, reply: HttpReply) -> None:
        """Answer one request."""
        refusal = self.refusal(request)
        if refusal is not None:
            send_refusal(reply, refusal)
        elif request.path not in _PATHS:
            reply.send(200, _HTML, _PAGE)
        elif self._openmetrics is not None and is_preferred(request.headers.get(b"accept", b"").decode("latin-1")):
            send_in_slices(reply, _OPENMETRICS, self._openmetrics())
        else:
            send_in_slices(reply, _EXPOSITION, self._exposition())
