"""Streams of the health service's `Watch`."""

import asyncio

import pytest

from conch.base.errors import ConchError
from conch.server.frontends.v2_grpc.service_streams import HealthWatches

STREAMS = 1000


class Sink:
    """What a stream has sent; a client that does not read is not flushed."""

    def __init__(self) -> None:
        self.flushed = True
        self.sent: list[bytes] = []

    def send(self, messages: list[bytes]) -> None:
        self.sent += messages

    def finish(self, error: ConchError | None = None) -> None:
        assert error is not None


@pytest.mark.asyncio
async def test_one_look_serves_all_streams() -> None:
    ready, looks = [True], [0]

    def look() -> bool:
        looks[0] += 1
        return ready[0]

    async def until_sent(sinks: list[Sink], messages: list[bytes]) -> None:
        async with asyncio.timeout(60):
            while any(sink.sent != messages for sink in sinks):
                await asyncio.sleep(0.01)

    watches = HealthWatches(lambda ready: b"ready" if ready else b"not", look)
    sinks = [Sink() for _ in range(STREAMS)]
    streams = [watches.open(sink) for sink in sinks]
    for stream in streams:
        stream.receive(b"")
        stream.receive(b"")
    sinks[0].flushed = False
    ready[0], looks[0] = False, 0
    await until_sent(sinks[1:], [b"ready", b"not"])
    assert 0 < looks[0] < 10
    sinks[0].flushed = True
    await until_sent(sinks, [b"ready", b"not"])
    for stream in streams[1:]:
        stream.cancel()
    ready[0] = True
    await until_sent(sinks[:1], [b"ready", b"not", b"ready"])
    assert sinks[1].sent == [b"ready", b"not"]
    streams[0].stop()
    assert sinks[0].sent[-1] == b"not"
