"""A collector of OpenTelemetry spans: OTLP over HTTP, decoded."""

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple, Self

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

TIMEOUT_S = 60


class Span(NamedTuple):
    """What came of one span; ids are hexadecimal, times nanoseconds of the wall clock."""

    trace: str
    id: str
    parent: str
    name: str
    attributes: dict[str, Any]
    events: list[str]
    start: int
    end: int
    resource: dict[str, Any]
    failed: bool


class Collector:
    """Use as a context manager; `url` is where spans are to be sent."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.metrics: dict[str, Any] = {}  # the latest `Metric` of each name
        self.resource: dict[str, Any] = {}  # of the metrics
        self._came = threading.Condition()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.path == "/v1/metrics":
                    collector.take_metrics(body)
                else:
                    collector.take(body, self.headers.get("Content-Encoding", ""))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/traces"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def take(self, body: bytes, coding: str) -> None:
        """Decode what was sent."""
        assert coding == ""
        groups = ExportTraceServiceRequest.FromString(body).resource_spans
        spans = [
            Span(
                span.trace_id.hex(),
                span.span_id.hex(),
                span.parent_span_id.hex(),
                span.name,
                _attributes(span.attributes),
                [event.name for event in span.events],
                span.start_time_unix_nano,
                span.end_time_unix_nano,
                _attributes(group.resource.attributes),
                span.status.code == 2,
            )
            for group in groups
            for scope in group.scope_spans
            for span in scope.spans
        ]
        with self._came:
            self.spans += spans
            self._came.notify_all()

    def take_metrics(self, body: bytes) -> None:
        """Decode metrics that were sent."""
        with self._came:
            for group in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                self.resource = _attributes(group.resource.attributes)
                self.metrics |= {metric.name: metric for scope in group.scope_metrics for metric in scope.metrics}
            self._came.notify_all()

    def until_metric(self, condition: Callable[[dict[str, Any]], bool]) -> None:
        """Return when the latest metrics fulfil a condition."""
        with self._came:
            assert self._came.wait_for(lambda: condition(self.metrics), TIMEOUT_S), self.metrics.keys()

    def until(self, number: int) -> list[Span]:
        """Return the spans when there are `count`."""
        with self._came:
            assert self._came.wait_for(lambda: len(self.spans) >= number, TIMEOUT_S), self.spans
            return list(self.spans)


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
