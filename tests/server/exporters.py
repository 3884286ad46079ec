"""An exporter of metrics that need hardware or engines which tests do not have."""

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

from conch.domain.metrics.metric import MetricDefinition

# Values of gauges by unit; counters grow by 1 per second.
_VALUES: dict[str, float] = {"ratio": 0.5, "bytes": 2e10}
_STARTED = time.monotonic()


def exposition(metrics: Iterable[MetricDefinition]) -> str:
    """Return a series of each gauge and counter."""
    lines: list[str] = []
    for metric in metrics:
        value = time.monotonic() - _STARTED if metric.kind == "counter" else _VALUES.get(metric.unit, 1.0)
        labels = ",".join(f'{label}="{label}-0"' for label in metric.labels)
        lines += [f"# TYPE {metric.name} {metric.kind}", f"{metric.name}{{{labels}}} {value}"]
    return "\n".join(lines) + "\n"


@contextmanager
def exporter(*metrics: MetricDefinition) -> Iterator[int]:
    """Serve an exposition at /metrics; yields the port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version: ClassVar[str] = "HTTP/1.1"

        def do_GET(self) -> None:
            body = exposition(metrics).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Write no log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
