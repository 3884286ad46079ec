"""How much is done in one turn of the loop when many ask at once."""

import asyncio

import uvloop

from conch.frontends.http_message import HttpRequest
from conch.frontends.http_reply import HttpReply
from conch.frontends.http_turns import Turns


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


def test_many_in_one_turn_are_spread_over_several_in_their_order() -> None:
    seen: list[str] = []
    shares: list[int] = []

    async def scenario() -> None:
        turns = Turns(lambda request, _: seen.append(request.path))
        for number in range(100):
            turns(*asked(str(number))[:2])
        while len(seen) < 100:
            shares.append(len(seen) - sum(shares))
            await asyncio.sleep(0)

    uvloop.run(scenario())
    assert max(shares) < 50
    assert seen == [str(number) for number in range(100)]


def test_one_that_is_put_off_is_dropped_with_its_client_and_fails_alone() -> None:
    gone, bad, good = asked("gone"), asked("bad"), asked("good")

    def handler(request: HttpRequest, reply: HttpReply) -> None:
        if request.path == "bad":
            raise RuntimeError("boom")
        reply.send(200, b"", request.path.encode())

    async def scenario() -> None:
        turns = Turns(handler)
        for _ in range(50):
            turns(*asked("early")[:2])
        for request, reply, _ in (gone, bad, good):
            turns(request, reply)
        gone[1].disconnect()
        for _ in range(5):
            await asyncio.sleep(0)

    uvloop.run(scenario())
    assert gone[2].written == b""
    assert bad[2].written.startswith(b"HTTP/1.1 500 ")
    assert good[2].written.endswith(b"good")
