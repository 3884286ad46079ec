"""The metrics port: `GET /metrics` for Prometheus."""

from collections.abc import Callable

import orjson

from conch.frontends.http_message import NO_HEADERS, HttpRequest, content_type
from conch.frontends.http_reply import HttpReply

_EXPOSITION = content_type(b"text/plain; version=0.0.4; charset=utf-8")
_JSON = content_type(b"application/json")


class MetricsHttp:
    """Handler of the metrics port. Other paths are answered with an empty 200, as Triton does."""

    def __init__(self, exposition: Callable[[], bytes]) -> None:
        """Assign. `exposition` makes the text of a scrape (exposition format 0.0.4)."""
        self._exposition = exposition

    def __call__(self, request: HttpRequest, reply: HttpReply) -> None:
        """Answer one request."""
        if request.method != b"GET":
            reply.send(405, _JSON, orjson.dumps({"error": "Method Not Allowed"}))
        elif request.path == "/metrics":
            reply.send(200, _EXPOSITION, self._exposition())
        else:
            reply.send(200, NO_HEADERS)
