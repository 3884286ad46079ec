"""Responses of `generate_stream` that wait for a worker process while the client does not read."""

import asyncio
from types import SimpleNamespace

from conch.domain.request import InferResponse, Timeline
from conch.domain.tensor import Tensor, pack_bytes
from conch.protocols.http.message import HttpRequest
from conch.server.frontends.request_headers import Tenants
from conch.server.frontends.v2_http import generate
from conch.server.frontends.v2_http.in_flight import InFlight

LARGE = pack_bytes([b"x" * (2**20)])


class SlowReply:
    """A reply whose client takes nothing."""

    begun = open = True
    writable = False
    peer = ""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.ended = False
        self.cancelled = 0

    def on_disconnect(self) -> None:
        self.cancelled += 1

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def end(self) -> None:
        self.ended = True

    async def drained(self) -> None:
        await asyncio.Event().wait()


async def test_waiting_responses_count_towards_the_bound_of_a_slow_client() -> None:
    reply = SlowReply()
    pool = SimpleNamespace(submit=lambda *_, **__: None)  # its worker never answers
    request = HttpRequest(b"POST", "/", [])
    call = InFlight(request, reply, None, None, Timeline(), None, None, pool, Tenants())  # type: ignore[arg-type]
    stream = generate._EventStream(call, frozenset())
    stream.send(b"{}", False)  # the client does not keep up from here on
    taken = 0
    while not reply.ended:
        taken += 1
        assert taken < 70, "the responses are not bounded"
        stream.respond(InferResponse("m", 1, [Tensor("OUT", "BYTES", (1,), LARGE)]), False)
    assert taken == 65  # the first is at the worker; 64 fill the bound with their lengths
    assert b"the client reads too slowly" in reply.written[-1]
    assert reply.cancelled == 1
