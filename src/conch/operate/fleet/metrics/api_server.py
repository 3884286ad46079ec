"""An HTTP server with the API of custom metrics, the state of the fleet and evictions, on 127.0.0.1.

It runs in threads, as its answers wait for Prometheus.
"""

import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from conch.base.errors import Unavailable
from conch.operate.fleet.metrics.custom_metrics import (
    GROUP,
    VERSIONS,
    AdapterRule,
    MetricPath,
    failure,
    matches,
    metric_values,
    not_found,
    parse_path,
    resource_list,
)
from conch.operate.fleet.metrics.prometheus import query

STATE_PATH = "/fleet"
_GROUP_PATH = f"/apis/{GROUP}"
_EVICTION = re.compile(r"/api/v1/namespaces/([^/]+)/pods/([^/]+)/eviction")
_LOCAL_NAMES = ("127.0.0.1", "localhost")


class ApiServer:
    """The API. Life: `start` → `stop`. The callbacks are called in threads."""

    def __init__(
        self,
        port: int,
        rules: Mapping[str, AdapterRule],
        prometheus_url: str,
        *,
        labels: Mapping[str, str],
        shorten: Callable[[str], str],
        pods: Callable[[], Sequence[str]],
        state: Callable[[], Mapping[str, Any]],
        evict: Callable[[str], bool],
    ) -> None:
        """Assign. `labels` are those of all pods, `pods` returns the names of the pods.

        `shorten` adapts the ranges of a query to the fleet's timing.
        """
        self.rules = rules
        self.prometheus_url = prometheus_url
        self.labels = labels
        self.shorten = shorten
        self.pods = pods
        self.state = state
        self.evict = evict
        self._port = port
        self._server: _ApiHttpServer | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        assert self._server is not None, "not started"
        return f"http://127.0.0.1:{self._server.server_port}"

    def start(self) -> None:
        """Listen. Raises OSError."""
        self._server = _ApiHttpServer(self._port, self)
        threading.Thread(target=self._server.serve_forever, name="fleet-api", daemon=True).start()

    def stop(self) -> None:
        """End."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def get(self, path: str, parameters: Mapping[str, str]) -> tuple[int, Mapping[str, Any]]:
        """Return status and document of a GET with the parameters of its query string."""
        if path == STATE_PATH:
            return 200, self.state()
        for version in VERSIONS:
            if path == f"{_GROUP_PATH}/{version}":
                return 200, resource_list(version, list(self.rules))
        asked = parse_path(path)
        if asked is None:
            return 404, failure(404, "NotFound", "the server could not find the requested resource")
        if "metricLabelSelector" in parameters:
            return 400, failure(
                400, "BadRequest", "metricLabelSelector is not supported: a metric has one series per pod"
            )
        selector = parameters.get("labelSelector", "")
        if not all(re.fullmatch(r"[\w./-]+==?[\w.-]+", each) for each in filter(None, selector.split(","))):
            return 400, failure(400, "BadRequest", f"labelSelector '{selector}' is not a list of name=value")
        return self._metric(asked, matches(selector, self.labels))

    def post(self, path: str) -> tuple[int, Mapping[str, Any]]:
        """Evict a pod. Returns status and document."""
        found = _EVICTION.fullmatch(path)
        if found is None:
            return 404, failure(404, "NotFound", "the server could not find the requested resource")
        name = unquote(found[2])
        if not self.evict(name):
            return 404, failure(404, "NotFound", f'pods "{name}" not found')
        return 201, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}

    def _metric(self, asked: MetricPath, selected: bool) -> tuple[int, Mapping[str, Any]]:
        rule = self.rules.get(asked.metric)
        known = self.pods() if selected else ()
        pods = known if asked.pod == "*" else [each for each in known if each == asked.pod]
        if rule is None or not pods:
            return 404, not_found(asked.metric)
        try:
            rows = query(self.prometheus_url, self.shorten(rule.query(asked.namespace, pods)))
        except Unavailable as error:
            return 500, failure(500, "InternalError", f"unable to fetch metrics: {error}")
        values = metric_values(asked, rows)
        return (200, values) if values["items"] else (404, not_found(asked.metric))


class _ApiHttpServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int, api: ApiServer) -> None:
        super().__init__(("127.0.0.1", port), _ApiRequest)
        self.api = api


class _ApiRequest(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _ApiHttpServer

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        self._answer(*self.server.api.get(url.path, dict(parse_qsl(url.query))))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        host = (self.headers.get("Host") or "").rpartition(":")[0]
        if self.headers.get("Origin") or host not in _LOCAL_NAMES:
            self._answer(403, failure(403, "Forbidden", "requests of web pages are not accepted"))
        else:
            self._answer(*self.server.api.post(urlsplit(self.path).path))

    def _answer(self, status: int, document: Mapping[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""
