"""A connection without a socket: bytes go in by pieces, what comes out is kept and taken apart."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

from tests.server.robustness.fuzz_server import Finding, settle

_HIGH_WATER = 65_536
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Answer(NamedTuple):
    """One HTTP response."""

    status: int
    headers: dict[bytes, bytes]  # names in lower case
    body: bytes


class Wire(asyncio.Transport):
    """The transport of one connection, which may be of any protocol."""

    def __init__(self, connection: Any) -> None:
        super().__init__()
        self.sent = bytearray()  # by the server
        self.ended = False  # the server sends nothing more
        self.gone = False
        self.reading = True
        self._closing = False
        self._unsent = 0
        self._connection = connection
        self._protocol: asyncio.BaseProtocol = connection
        connection.connection_made(self)

    async def feed(self, pieces: Sequence[bytes], take: bool = True) -> None:
        """Deliver pieces as a socket would; with `take` off the client reads nothing before all are delivered."""
        for piece in pieces:
            rest = piece
            while rest and not self.gone:
                await settle(self._accepts)
                if not self.gone:
                    rest = self._deliver(rest)
            if take:
                self._taken()

    async def finish(self, busy: Callable[[], bool], turns: int = 12) -> None:
        """Wait for the answers that are due, then leave.

        Several turns in any case: an answer may take as many, and nothing outside tells that none is under way.
        """
        for _ in range(turns):
            self._taken()
            await asyncio.sleep(0)

        def idle() -> bool:
            self._taken()
            return self.gone or not busy()

        await settle(idle)
        self.abort()
        await settle(lambda: self.gone)

    def _deliver(self, data: bytes) -> bytes:
        protocol = self._protocol
        if isinstance(protocol, asyncio.BufferedProtocol):
            place = memoryview(cast("memoryview", protocol.get_buffer(-1)))
            part = data[: len(place)]
            place[: len(part)] = part
            protocol.buffer_updated(len(part))
            if protocol is self._connection:
                # It reads to one place again and again: a view of it that is kept changes.
                place[: len(part)] = b"\xee" * len(part)
            return data[len(part) :]
        self._connection.data_received(data)
        return b""

    def _accepts(self) -> bool:
        """Whether more may be delivered. A client that cannot send reads what it was sent."""
        if not self.reading:
            self._taken()
        return self.reading or self.gone

    def _taken(self) -> None:
        """Have the client take all that was written."""
        full, self._unsent = self._unsent > _HIGH_WATER, 0
        if full and not self.gone:
            self._connection.resume_writing()

    # What the connection does with a transport.

    def write(self, data: Any) -> None:
        if self.ended:
            raise Finding(f"written after the end: {bytes(data)[:200]!r}")
        self.sent += data
        was, self._unsent = self._unsent, self._unsent + len(data)
        if was <= _HIGH_WATER < self._unsent:
            self._connection.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        for data in list_of_data:
            self.write(data)

    def write_eof(self) -> None:
        self.ended = True

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return self._unsent

    def close(self) -> None:
        if not self._closing:
            self.ended = self._closing = True
            self.reading = False
            asyncio.get_running_loop().call_soon(self._lost)

    abort = close

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """The one limit is as good as another."""

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def _lost(self) -> None:
        self.gone = True
        self._protocol.connection_lost(None)


def read_answers(data: bytes, methods: Sequence[bytes]) -> list[Answer]:
    """Take responses apart; `methods` are those of the requests, one less than responses if the last is a refusal.

    Raises Finding for anything but whole, well-formed responses.
    """
    answers: list[Answer] = []
    rest = data
    while rest:
        if rest.startswith(_CONTINUE):
            rest = rest[len(_CONTINUE) :]
            continue
        head, separator, rest = rest.partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        version, _, status = lines[0].partition(b" ")
        if not separator or version != b"HTTP/1.1" or not status[:3].isdigit():
            raise Finding(f"no response: {head[:200]!r}")
        headers = {}
        for line in lines[1:]:
            name, colon, value = line.partition(b": ")
            if not colon or name.lower() in headers:
                raise Finding(f"no header: {line!r}")
            headers[name.lower()] = value
        size = int(headers[b"content-length"])
        if len(answers) < len(methods) and methods[len(answers)] == b"HEAD":
            size = 0
        if len(rest) < size:
            raise Finding(f"{size - len(rest)} bytes of the body are missing: {head[:200]!r}")
        answers.append(Answer(int(status[:3]), headers, rest[:size]))
        rest = rest[size:]
    return answers
