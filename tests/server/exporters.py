"""Expositions of metrics that need hardware or engines which tests do not have, with values made up by their units."""

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

from conch.metric_catalog.metric import MetricDefinition, Unit

# A value in the middle of what a unit allows; counters grow by it per second.
_VALUES: dict[Unit, float] = {
    "ratio": 0.5,
    "percent": 50.0,
    "celsius": 60.0,
    "watts": 250.0,
    "bytes": 2e10,
    "mebibytes": 20_000.0,
    "joules": 250.0,
    "millijoules": 250_000.0,
    "hertz": 1.4e9,
    "megahertz": 1400.0,
    "bytes_per_second": 1e6,
    "megabytes_per_second": 10.0,
}
_STARTED = time.monotonic()


def exposition(metrics: Iterable[MetricDefinition]) -> str:
    """Return a series of each gauge and counter."""
    seconds = time.monotonic() - _STARTED + 1000
    lines: list[str] = []
    for metric in metrics:
        if metric.kind not in ("gauge", "counter"):
            continue
        value = _VALUES.get(metric.unit, 1.0) * (seconds if metric.kind == "counter" else 1)
        if "total" in metric.name and metric.unit in ("bytes", "mebibytes"):
            value *= 4  # capacities
        labels = ",".join(f'{label}="{label}-0"' for label in (*metric.labels, *_hosts(metric)))
        lines += [f"# TYPE {metric.name} {metric.kind}", f"{metric.name}{{{labels}}} {value}"]
    return "\n".join(lines) + "\n"


def _hosts(metric: MetricDefinition) -> list[str]:
    return [label for label in ("Hostname", "hostname") if label in metric.optional_labels]


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
