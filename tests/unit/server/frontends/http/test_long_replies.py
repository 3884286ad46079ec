"""Long answers leave the event loop to others in between, and are what they would be in one piece."""

import asyncio
import time

from conch.protocols.http.long_replies import send_in_slices
from conch.protocols.http.message import HttpRequest
from conch.protocols.http.reply import HttpReply


class Channel:
    ending = False
    writable = True

    def __init__(self) -> None:
        self.sent = b""

    def write(self, data: bytes) -> None:
        self.sent += data

    def write_parts(self, parts: list[bytes]) -> None:
        self.sent += b"".join(parts)

    def finished(self, keep_alive: bool) -> None:
        pass

    async def drained(self) -> None:
        pass


async def test_others_run_between_slices() -> None:
    channel, turns = Channel(), 0

    def pieces():
        for _ in range(5):
            until = time.monotonic() + 0.006
            while time.monotonic() < until:
                pass
            yield b"%d" % turns

    send_in_slices(HttpReply(channel, HttpRequest(b"GET", "/", [])), b"", pieces())
    while not channel.sent:
        turns += 1
        await asyncio.sleep(0)
    assert turns > 1
    assert channel.sent.endswith(b"\r\n\r\n01234")


async def test_a_short_answer_is_sent_at_once() -> None:
    channel = Channel()
    send_in_slices(HttpReply(channel, HttpRequest(b"GET", "/", [])), b"", iter([b"a", b"b"]))
    assert channel.sent.endswith(b"ab")


async def test_a_failure_is_an_answer() -> None:
    channel = Channel()
    send_in_slices(HttpReply(channel, HttpRequest(b"GET", "/", [])), b"", (1 // 0 for _ in range(1)))  # type: ignore[arg-type]
    assert b"internal error" in channel.sent
