"""The least that a server in Python does: `python -m benchmarks.harness.echo_server ANSWER PORT`, on uvloop.

It answers each HTTP/1.1 request with the bytes of a file, without looking at more than the request's length.
"""

import asyncio
import re
import sys
from pathlib import Path
from typing import cast

import uvloop

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


class EchoServer(asyncio.Protocol):
    """One connection, whose requests are all as long as its first."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._length = 0
        self._received = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Answer each request that is complete."""
        if not self._length:
            length = _LENGTH.search(data)
            self._length = data.index(b"\r\n\r\n") + 4 + (int(length[1]) if length else 0)
        self._received += len(data)
        while self._received >= self._length:
            self._received -= self._length
            self._transport.write(self._answer)


async def _serve(answer: bytes, port: int) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: EchoServer(answer), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(Path(sys.argv[1]).read_bytes(), int(sys.argv[2])))
