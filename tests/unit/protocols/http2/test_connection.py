"""The socket of a client, with others beside it."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import ExitStack

from conch.protocols.connections.loop_budget import ParseBudget
from conch.protocols.connections.traffic import SweepClock, Traffic
from conch.protocols.http2.connection import Http2Connection
from conch.protocols.http2.flow_control import Http2Stream, Receiver
from conch.protocols.http2.header_blocks import RequestHead
from conch.protocols.http2.limits import Http2Limits
from tests.server.robustness import grpc_input as h2

CLIENTS = 50
PINGS = 200


class CountingBudget(ParseBudget):
    """Slices that end at once, and the number of connections that wait for their next one."""

    def __init__(self) -> None:
        super().__init__(slice_s=0.0, short_slice_s=0.0)
        self.postponed = 0
        self.most = 0

    def postpone(self, serve: Callable[[], None]) -> None:
        def serve_counted() -> None:
            self.postponed -= 1
            serve()

        self.postponed += 1
        self.most = max(self.most, self.postponed)
        super().postpone(serve_counted)


class Listener:
    """The owner of real connections."""

    def __init__(self) -> None:
        self.limits = Http2Limits(ping_strikes=0)
        self.clock = SweepClock()
        self.traffic = Traffic()
        self.parse_budget = CountingBudget()
        self.read_buffer = memoryview(bytearray(65_536))

    def opened(self, connection: Http2Connection) -> bool:
        return True

    def closed(self, connection: Http2Connection) -> None:
        """Nothing is kept of it."""

    def interpret(self, head: RequestHead) -> RequestHead:
        return head

    def accept(self, head: RequestHead, stream: Http2Stream) -> Receiver:
        raise AssertionError


async def test_what_connections_have_not_parsed_shares_the_turns_of_all() -> None:
    owner = Listener()
    loop = asyncio.get_running_loop()
    sent = h2.OPEN + h2.frame(h2.PING, 0, 0, b"12345678") * PINGS
    answers = h2.frame(h2.PING, h2.ACK, 0, b"12345678")
    with ExitStack() as stack:
        clients = []
        for _ in range(CLIENTS):
            client, server = socket.socketpair()
            stack.enter_context(client)
            client.setblocking(False)
            client.sendall(sent)
            await loop.create_connection(lambda: Http2Connection(owner), sock=server)
            clients.append(client)
        for client in clients:
            received = b""
            while received.count(answers) < PINGS:
                more = await loop.sock_recv(client, 65_536)
                assert more, received[-100:]
                received += more
    assert owner.parse_budget.most > 1
    assert not owner.parse_budget.postponed
