"""An HTTP server with the API of custom metrics as prometheus-adapter has it, the state of the fleet, and evictions.

Paths: `/apis/custom.metrics.k8s.io/<version>/namespaces/<namespace>/pods/<name or *>/<metric>`. The server runs in
threads on 127.0.0.1, as its answers wait for Prometheus.
"""

import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import isfinite
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from conch.base.errors import Unavailable
from conch.operate.fleet.prometheus import SeriesValue, query
from conch.operate.scaling.object_reader import format_quantity

GROUP = "custom.metrics.k8s.io"
VERSIONS = ("v1beta1", "v1beta2")
_SCHEMA_LABELS = {"<<.GroupBy>>": "pod"}
STATE_PATH = "/fleet"
_GROUP_PATH = f"/apis/{GROUP}"
_EVICTION = re.compile(r"/api/v1/namespaces/([^/]+)/pods/([^/]+)/eviction")
_LOCAL_NAMES = ("127.0.0.1", "localhost")


@dataclass(frozen=True, slots=True)
class MetricPath:
    """A request for a metric of pods. `pod` is "*" for all of the namespace."""

    version: str
    namespace: str
    pod: str
    metric: str


@dataclass(frozen=True, slots=True)
class AdapterRule:
    """A rule of prometheus-adapter for a metric of pods."""

    name: str
    metrics_query: str

    def query(self, namespace: str, pods: Sequence[str]) -> str:
        """Return the query for one value per pod."""
        pod_matcher = f'pod="{pods[0]}"' if len(pods) == 1 else f'pod=~"{"|".join(pods)}"'
        filled = {
            "<<.LabelMatchers>>": f'namespace="{namespace}",{pod_matcher}',
            "<<.Series>>": self.name,
            **_SCHEMA_LABELS,
        }
        text = self.metrics_query
        for placeholder, value in filled.items():
            text = text.replace(placeholder, value)
        return text


def read_rules(documents: Sequence[Mapping[str, Any]]) -> dict[str, AdapterRule]:
    """Return the rules of an adapter's configuration by the metrics that they define."""
    rules = (AdapterRule(str(document["name"]["as"]), str(document["metricsQuery"])) for document in documents)
    return {rule.name: rule for rule in rules}


def parse_path(path: str) -> MetricPath | None:
    """Return what a path asks for, None if it is not a metric of pods."""
    parts = unquote(path).strip("/").split("/")  # the API server unquotes first; Python's client quotes slashes
    if len(parts) != 8 or parts[:2] != ["apis", GROUP] or parts[2] not in VERSIONS:
        return None
    if (parts[3], parts[5]) != ("namespaces", "pods"):
        return None
    return MetricPath(parts[2], parts[4], parts[6], parts[7])


def matches(selector: str, labels: Mapping[str, str]) -> bool:
    """Return whether labels fulfil a selector of equalities: `name=value,…`."""
    pairs = (part.replace("==", "=").partition("=") for part in selector.split(",") if part)
    return all(labels.get(name) == value for name, _, value in pairs)


def metric_values(asked: MetricPath, rows: Sequence[SeriesValue]) -> dict[str, Any]:
    """Return a MetricValueList with the finite values of a query."""
    return {
        "kind": "MetricValueList",
        "apiVersion": f"{GROUP}/{asked.version}",
        "metadata": {},
        "items": [_item(asked, row) for row in rows if isfinite(row.value) and "pod" in row.labels],
    }


def _item(asked: MetricPath, row: SeriesValue) -> dict[str, Any]:
    name = {"metricName": asked.metric} if asked.version == "v1beta1" else {"metric": {"name": asked.metric}}
    return {
        "describedObject": {
            "kind": "Pod",
            "namespace": asked.namespace,
            "name": row.labels["pod"],
            "apiVersion": "/v1",
        },
        **name,
        "timestamp": datetime.fromtimestamp(row.at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "value": format_quantity(row.value),
        **({"selector": None} if asked.version == "v1beta1" else {}),
    }


def resource_list(version: str, metrics: Sequence[str]) -> dict[str, Any]:
    """Return the APIResourceList by which clients discover the metrics."""
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{GROUP}/{version}",
        "resources": [
            {
                "name": f"pods/{name}",
                "singularName": "",
                "namespaced": True,
                "kind": "MetricValueList",
                "verbs": ["get"],
            }
            for name in metrics
        ],
    }


def failure(code: int, reason: str, message: str) -> dict[str, Any]:
    """Return the Status of a failed request."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }


def not_found(metric: str) -> dict[str, Any]:
    """Return the adapter's answer for a metric without series."""
    return failure(404, "NotFound", f"the server could not find the metric {metric} for pods")


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
        """`labels` are those of all pods, `pods` returns the names of the pods.

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
        if not all(re.fullmatch(r"[\w./-]+==?[\w.-]+", part) for part in filter(None, selector.split(","))):
            return 400, failure(400, "BadRequest", f"labelSelector '{selector}' is not a list of name=value")
        return self._metric(asked, matches(selector, self.labels))

    def post(self, path: str) -> tuple[int, Mapping[str, Any]]:
        """Evict a pod. Returns status and document."""
        match = _EVICTION.fullmatch(path)
        if match is None:
            return 404, failure(404, "NotFound", "the server could not find the requested resource")
        name = unquote(match[2])
        if not self.evict(name):
            return 404, failure(404, "NotFound", f'pods "{name}" not found')
        return 201, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}

    def _metric(self, asked: MetricPath, selected: bool) -> tuple[int, Mapping[str, Any]]:
        rule = self.rules.get(asked.metric)
        known = self.pods() if selected else ()
        pods = known if asked.pod == "*" else [pod for pod in known if pod == asked.pod]
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
