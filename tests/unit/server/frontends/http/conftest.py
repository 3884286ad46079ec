import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from typing import Any

import pytest
import uvloop

from conch.protocols.http.message import HttpLimits
from conch.protocols.http.server import HttpServer
from conch.server.frontends.endpoints import HTTP_PORT, Handlers
from conch.server.frontends.parts import Parts
from conch.server.options.server_options import ServerOptions
from tests.unit.server.frontends.http.scripted_core import ScriptedControl, ScriptedInference, model

TIMEOUT_S = 60


class LoopThread:
    """uvloop, as in production, in its own thread, so that tests are plain clients."""

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(TIMEOUT_S)

    def call(self, function: Callable[[], Any]) -> Any:
        async def call() -> Any:
            return function()

        return self.run(call())

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(TIMEOUT_S)
        self.loop.close()


class Peer:
    """A client that writes bytes as it likes and reads answers one by one."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self.stream = self.socket.makefile("rb")

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self) -> tuple[int, dict[str, str], bytes]:
        """Read one answer: status, headers by lower-case name, body."""
        status_line = self.stream.readline()
        assert status_line.startswith(b"HTTP/1.1 "), status_line
        headers = {}
        while line := self.stream.readline().rstrip(b"\r\n"):
            name, _, value = line.decode().partition(": ")
            headers[name.lower()] = value
        body = b""
        if headers.get("transfer-encoding") == "chunked":
            chunks = []
            while size := int(self.stream.readline(), 16):
                chunks.append(self.stream.read(size))
                self.stream.readline()
            self.stream.readline()
            body = b"".join(chunks)
        elif "content-length" in headers:
            body = self.stream.read(int(headers["content-length"]))
        return int(status_line.split()[1]), headers, body

    def rest(self) -> bytes:
        """Read until the server closes."""
        return self.stream.read()

    def close(self) -> None:
        self.stream.close()
        self.socket.close()


class Client:
    """A well-behaved HTTP client with one connection."""

    def __init__(self, port: int) -> None:
        self._connection = HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)

    def __call__(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes, HTTPResponse]:
        self._connection.request(method, path, body, headers or {})
        response = self._connection.getresponse()
        return response.status, response.read(), response

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def loop_thread() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.close()


@pytest.fixture
def listen(loop_thread):
    """Start servers for handlers on free ports; they are stopped after the test."""
    servers: list[HttpServer] = []

    def start(handler, **options) -> HttpServer:
        if "limits" in options:
            options["limits"] = HttpLimits(**options["limits"])
        server = HttpServer(handler, "127.0.0.1", 0, **options)
        loop_thread.run(server.start())
        servers.append(server)
        return server

    yield start
    for server in servers:
        loop_thread.run(server.stop(0))


@pytest.fixture
def connect():
    """Open raw connections that are closed after the test."""
    peers: list[Peer] = []

    def connect(server: HttpServer) -> Peer:
        peer = Peer(server.port)
        peers.append(peer)
        return peer

    yield connect
    for peer in peers:
        peer.close()


@contextmanager
def client_of(server: HttpServer) -> Iterator[Client]:
    client = Client(server.port)
    try:
        yield client
    finally:
        client.close()


@pytest.fixture
def inference() -> ScriptedInference:
    return ScriptedInference(
        model("identity"),
        model("addsub", "INT32", (4,), inputs=2),
        model("text", "BYTES", (1,)),
        model("open", "INT16", (-1,), max_batch_size=0),
        model("half", "FP16", (4,)),
        model("decoupled", decoupled=True),
    )


@pytest.fixture
def control() -> ScriptedControl:
    return ScriptedControl()


@pytest.fixture
def serve(listen, inference, control):
    """Start a whole v2 frontend over a scripted core."""

    def start(**options) -> HttpServer:
        chosen = ServerOptions(**options)
        handler = Handlers(Parts(chosen, inference, control)).router(HTTP_PORT)
        limits = {"body_bytes": chosen.http_max_input_size}
        return listen(handler, limits=limits, body_limit=handler.body_limit, refusal=handler.refusal)

    return start


@pytest.fixture
def server(serve) -> HttpServer:
    return serve()


@pytest.fixture
def client(server) -> Iterator[Client]:
    with client_of(server) as client:
        yield client
