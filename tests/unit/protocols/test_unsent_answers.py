"""Clients that do not read their answers: the memory of all is bounded, and other clients are served."""

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import ExitStack

import pytest
from hpack import Encoder

from conch.domain.tensor import Buffer
from conch.protocols.http.message import HttpRequest, content_type
from conch.protocols.http.reply import HttpReply
from conch.protocols.http.server import HttpServer
from conch.protocols.http2.header_blocks import RequestHead
from conch.protocols.http2.limits import Http2Limits
from conch.protocols.http2.server import Http2Server
from tests.unit.protocols.http2.peers import (
    HEAD,
    HEADERS,
    NO_SETTINGS,
    PREFACE,
    REQUEST,
    TRAILERS,
    WINDOW_UPDATE,
    Recorder,
    frame,
    number,
    setting,
)

ANSWER = bytes(16 * 2**20)
MAX_UNSENT_BYTES = 40 * 2**20
INITIAL_WINDOW = 4
GET = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


class Answering(Recorder):
    """A receiver that answers each request with the same bytes."""

    def data(self, data: Buffer, ended: bool) -> bool:
        if ended:
            self.stream.answer(HEAD, [ANSWER], len(ANSWER), TRAILERS)
        return True


def answer_http(_: HttpRequest, reply: HttpReply) -> None:
    reply.send(200, content_type(b"text/plain"), ANSWER)


def http2_request(window: bytes) -> bytes:
    return PREFACE + NO_SETTINGS + window + frame(HEADERS, 1, Encoder().encode(REQUEST), 5)


def http_server() -> HttpServer:
    return HttpServer(answer_http, "127.0.0.1", 0, max_unsent_bytes=MAX_UNSENT_BYTES)


def http2_server() -> Http2Server[RequestHead]:
    return Http2Server(
        "127.0.0.1",
        0,
        interpret=lambda head: head,
        accept=Answering,
        limits=Http2Limits(),
        max_unsent_bytes=MAX_UNSENT_BYTES,
    )


WIDE = setting(INITIAL_WINDOW, 2**30) + frame(WINDOW_UPDATE, 0, number(2**30))


@pytest.mark.parametrize(
    ("create", "slow", "good"),
    [
        (http_server, GET, GET),
        (http2_server, http2_request(b""), http2_request(WIDE)),
        (http2_server, http2_request(setting(INITIAL_WINDOW, 1)), http2_request(WIDE)),
    ],
    ids=["http", "http2-without-updates", "http2-window-of-a-byte"],
)
def test_clients_that_do_not_read_are_aborted_beyond_the_maximum(
    create: Callable[[], HttpServer | Http2Server[RequestHead]],
    slow: bytes,
    good: bytes,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        server = create()
        await server.start()
        with ExitStack() as clients:
            for _ in range(2):
                connect(clients, server.port).sendall(slow)
            await asyncio.sleep(2.5)  # two checks
            assert server.connections == 2
            for _ in range(3):
                connect(clients, server.port).sendall(slow)
            async with asyncio.timeout(30):
                while len(aborted(caplog)) < 2:  # the system buffers some megabytes of each
                    await asyncio.sleep(0.05)
            client = connect(clients, server.port)
            client.sendall(good)
            received = 0
            while received < len(ANSWER):
                received += len(await asyncio.to_thread(client.recv, 2**20))
        await server.stop(1)

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert "all clients together exceed 40 MiB" in aborted(caplog)[0]


def aborted(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if line.startswith("aborted a connection of 127.0.0.1")]


def connect(clients: ExitStack, port: int) -> socket.socket:
    client = clients.enter_context(socket.socket())
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    client.settimeout(30)
    client.connect(("127.0.0.1", port))
    return client
