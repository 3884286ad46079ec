"""Requests over HTTP when more come in one turn of the loop than are served in it."""

import asyncio

import uvloop

from conch.frontends.http_message import HttpRequest
from conch.frontends.http_reply import HttpReply
from conch.frontends.http_server import HttpServer


class Channel:
    """A connection that remembers what was written."""

    ending = False

    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data

    def finished(self, keep_alive: bool) -> None:
        pass


def asked(path: str) -> tuple[HttpRequest, HttpReply, Channel]:
    request, channel = HttpRequest(b"GET", path, []), Channel()
    return request, HttpReply(channel, request), channel


def test_one_that_is_put_off_is_dropped_with_its_client_and_fails_alone() -> None:
    gone, bad, good = asked("gone"), asked("bad"), asked("good")

    def handler(request: HttpRequest, reply: HttpReply) -> None:
        if request.path == "bad":
            raise RuntimeError("boom")
        reply.send(200, b"", request.path.encode())

    async def scenario() -> None:
        server = HttpServer(handler, "127.0.0.1", 0)
        for _ in range(50):
            server.handler(*asked("early")[:2])
        for request, reply, _ in (gone, bad, good):
            server.handler(request, reply)
        gone[1].disconnect()
        for _ in range(5):
            await asyncio.sleep(0)

    uvloop.run(scenario())
    assert gone[2].written == b""
    assert bad[2].written.startswith(b"HTTP/1.1 500 ")
    assert good[2].written.endswith(b"good")
