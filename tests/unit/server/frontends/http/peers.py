"""Requests, handlers and waiting, for tests of the listener."""

import queue
import time
from collections.abc import Callable

from conch.protocols.http.message import NO_HEADERS, HttpRequest
from conch.protocols.http.reply import HttpReply

GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED = b"POST /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


def echo(request: HttpRequest, reply: HttpReply) -> None:
    reply.send(200, NO_HEADERS, request.method, b" ", request.path.encode(), b" ", request.body)


def post(path: bytes, body: bytes, *fields: bytes) -> bytes:
    head = b"".join(field + b"\r\n" for field in fields)
    return b"POST %s HTTP/1.1\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n%s" % (path, head, len(body), body)


def until(done: Callable[[], bool], timeout_s: float = 60) -> None:
    """Wait for what the server does in its own time."""
    deadline = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Holding:
    """Leaves requests unanswered until the test has seen them."""

    def __init__(self) -> None:
        self.held: queue.Queue[tuple[HttpRequest, HttpReply]] = queue.Queue()
        self.left: queue.Queue[str] = queue.Queue()

    def __call__(self, request: HttpRequest, reply: HttpReply) -> None:
        reply.on_disconnect = lambda: self.left.put(request.path)
        self.held.put((request, reply))

    def next(self) -> tuple[HttpRequest, HttpReply]:
        return self.held.get(timeout=60)
