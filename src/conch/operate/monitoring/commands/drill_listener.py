"""The listener of a drill: its samples for Prometheus, and the webhook of Alertmanager."""

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_MAX_BODY_BYTES = 4 << 20


class DrillListener:
    """An HTTP server on one address: `GET /metrics` has the samples, `POST /` receives webhooks."""

    def __init__(self, host: str, port: int, alert: str) -> None:
        """Bind the address. Raises OSError."""
        self._alert = alert
        self.exposition: Callable[[], str] = str
        self.scraped_at: float | None = None  # of the first scrape with samples, on the monotonic clock
        self.received_at: float | None = None  # of the first webhook with the alert firing
        self.received = threading.Event()
        self._server = ThreadingHTTPServer((host, port), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Release the address."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def scrape(self) -> bytes:
        """Return the text of a scrape, and note the first one with samples."""
        text = self.exposition()
        if text and self.scraped_at is None:
            self.scraped_at = time.monotonic()
        return text.encode()

    def accept(self, body: bytes) -> bool:
        """Record a webhook; return whether it is one of Alertmanager."""
        try:
            document: Any = json.loads(body)
            alerts = document["alerts"]
            firing = [alert for alert in alerts if alert["status"] == "firing" and self._is_meant(alert)]
        except (ValueError, KeyError, TypeError):
            return False
        if firing and self.received_at is None:
            self.received_at = time.monotonic()
            self.received.set()
        return True

    def _is_meant(self, alert: dict[str, Any]) -> bool:
        return bool(alert["labels"]["alertname"] == self._alert)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        listener = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                known = self.path == "/metrics"
                self._answer(200 if known else 404, listener.scrape() if known else b"not found\n")

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                valid = 0 < length <= _MAX_BODY_BYTES and listener.accept(self.rfile.read(length))
                self._answer(200 if valid else 400, b"")

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the name of the base class
                del format, args

        return Handler
