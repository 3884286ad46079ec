"""Metrics over HTTP: `GET /metrics` for Prometheus, and a page that links to it."""

import zlib
from collections.abc import Callable, Iterator

from conch.domain.openmetrics import CONTENT_TYPE, is_preferred
from conch.protocols.compression import preferred_coding
from conch.protocols.http.errors import V2
from conch.protocols.http.long_replies import send_in_slices
from conch.protocols.http.message import HttpRequest, content_type, header
from conch.protocols.http.reply import HttpReply
from conch.protocols.http.router import Route, Router, UnknownPaths

_EXPOSITION = content_type(b"text/plain; version=0.0.4; charset=utf-8")
_OPENMETRICS = content_type(CONTENT_TYPE)
_GZIP = header(b"Content-Encoding", b"gzip")
_LEVEL = 1  # a tenth of the size; higher levels take several times as long
_GZIP_BITS = 31
_HTML = content_type(b"text/html; charset=utf-8")
_PAGE = b"""<!DOCTYPE html>
<html lang="en">
<head><title>Conch metrics</title></head>
<body><h1>Conch metrics</h1><ul><li><a href="/metrics">/metrics</a>: metrics for Prometheus</li></ul></body>
</html>
"""
METHODS = (b"GET", b"HEAD")


class MetricsPage:
    """Answers with the metrics, or with a page that links to them."""

    def __init__(
        self,
        exposition: Callable[[], Iterator[bytes]],
        openmetrics: Callable[[], Iterator[bytes]] | None = None,
    ) -> None:
        """`exposition` yields the text of a scrape (format 0.0.4) in pieces, `openmetrics` in OpenMetrics."""
        self._openmetrics = openmetrics
        self._exposition = exposition

    def index(self, _request: HttpRequest, reply: HttpReply) -> None:
        """Answer with the page that links to the metrics."""
        reply.send(200, _HTML, _PAGE)

    def answer(self, request: HttpRequest, reply: HttpReply) -> None:
        """Answer a scrape, compressed with gzip for clients that prefer it, as Prometheus does."""
        headers, pieces = _EXPOSITION, self._exposition
        if self._openmetrics is not None and is_preferred(request.headers.get(b"accept", b"").decode("latin-1")):
            headers, pieces = _OPENMETRICS, self._openmetrics
        if preferred_coding(request.headers.get(b"accept-encoding", b"")) == b"gzip":
            send_in_slices(reply, headers + _GZIP, _compressed(pieces()))
        else:
            send_in_slices(reply, headers, pieces())


def _compressed(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Compress a page piece by piece, so that a slice of time also bounds the compression."""
    compressor = zlib.compressobj(_LEVEL, wbits=_GZIP_BITS)
    for piece in pieces:
        yield compressor.compress(piece)
    yield compressor.flush()


def metrics_router(page: MetricsPage, *further: Route) -> Router:
    """Return the handler of a port for metrics alone, which needs no key."""
    metrics = [Route(METHODS, path, "metrics", V2, page.answer, 0) for path in ("/metrics", "/metrics/")]
    index = Route(METHODS, "/", "metrics", V2, page.index, 0)
    return Router([*metrics, index, *further], (UnknownPaths("", V2, "metrics"),))
