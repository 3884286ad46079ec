"""Small servers whose answers are written down, for what is not an inference server, or one with its own ideas."""

import json
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Route = tuple[int, Mapping[str, str], bytes]
Answer = Callable[[str, dict[str, str], bytes], Route | None]


def as_json(document: Any, status: int = 200, **headers: str) -> Route:
    return status, {"content-type": "application/json", **headers}, json.dumps(document).encode()


@contextmanager
def scripted(answer: Answer | Mapping[str, Route], tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Yield `host:port` of a server that answers a path as written; other paths with 404.

    A function gets "METHOD path", headers and body; it may return None for 404.
    """
    fixed = None if callable(answer) else answer

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def handle_one(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            if fixed is not None:
                route = fixed.get(self.path)
            else:
                assert callable(answer)
                route = answer(f"{self.command} {self.path}", headers, body)
            status, fields, content = route or (404, {}, b"")
            self.send_response_only(status)
            for name, value in fields.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = handle_one

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # failed handshakes are part of the tests
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def speaking(first: bytes) -> Iterator[str]:
    """Yield `host:port` of a server that sends these bytes on each connection and closes it."""
    import socket

    listener = socket.create_server(("127.0.0.1", 0))
    stopping = threading.Event()

    def serve() -> None:
        while not stopping.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.sendall(first)
                connection.settimeout(0.2)
                with suppress(OSError):
                    connection.recv(4096)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        stopping.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
