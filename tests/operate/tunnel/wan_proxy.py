"""A TCP proxy with the delay and the loss of a WAN, for a program that runs in another network namespace or a thread.

`python -m tests.operate.tunnel.wan_proxy ADDRESS PORT HOST PORT DELAY_S LOSS`. A lost segment arrives after a
retransmission timeout, which holds up what follows it, as in TCP.
"""

import asyncio
import random
import sys
from contextlib import suppress

RETRANSMISSION_S = 0.2
_CHUNK_BYTES = 1400


class WanProxy:
    """Forwards connections to one destination. Life: `start` → `stop`."""

    def __init__(self, host: str, port: int, *, delay_s: float = 0.0, loss: float = 0.0) -> None:
        self.destination = (host, port)
        self.delay_s, self.loss = delay_s, loss
        self.frozen = False  # what arrives is not passed on: the connections are half-dead
        self._random = random.Random(7)
        self._server: asyncio.Server | None = None

    async def start(self, address: str, port: int) -> int:
        self._server = await asyncio.start_server(self._serve, address, port)
        return int(self._server.sockets[0].getsockname()[1])

    def stop(self) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(*self.destination)
        except OSError:
            writer.transport.abort()
            return
        ways = [
            asyncio.ensure_future(self._pass(reader, far_writer)),
            asyncio.ensure_future(self._pass(far_reader, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            writer.transport.abort()
            far_writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while chunk := await reader.read(_CHUNK_BYTES):
                await asyncio.sleep(self.delay_s + RETRANSMISSION_S * (self._random.random() < self.loss))
                while self.frozen:
                    await asyncio.sleep(0.05)
                writer.write(chunk)
                await writer.drain()


async def main() -> None:
    address, port, host, host_port, delay_s, loss = sys.argv[1:]
    proxy = WanProxy(host, int(host_port), delay_s=float(delay_s), loss=float(loss))
    await proxy.start(address, int(port))
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
