"""What a listener owes to load balancers when it starts and stops: no connection is reset, none is kept open."""

import asyncio
import socket

from conch.protocols.http.message import HttpRequest
from conch.protocols.http.reply import HttpReply
from conch.protocols.http.server import HttpServer

REQUEST = b"GET / HTTP/1.1\r\nHost: test\r\n\r\n"


def handler(_request: HttpRequest, reply: HttpReply) -> None:
    reply.send(200, b"", b"ok")


def client(server: HttpServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=30)


async def answer(connection: socket.socket) -> bytes:
    connection.sendall(REQUEST)
    return await asyncio.to_thread(connection.recv, 65536)


async def test_connections_in_the_queue_are_served_after_the_port_is_closed() -> None:
    server = HttpServer(handler, "127.0.0.1", 0)
    await server.start()
    with client(server) as queued:  # this thread runs the loop: nothing has accepted the connection
        server.stop_accepting()
        assert (await answer(queued)).startswith(b"HTTP/1.1 200")
        await server.stop(0.0)


async def test_retired_connections_close_after_their_next_answer() -> None:
    server = HttpServer(handler, "127.0.0.1", 0)
    await server.start()
    with client(server) as old:
        assert b"close" not in await answer(old)
        server.retire_connections()
        assert b"\r\nConnection: close\r\n" in await answer(old)
        assert await asyncio.to_thread(old.recv, 1) == b""
    with client(server) as new:
        assert b"\r\nConnection: close\r\n" in await answer(new)
    await server.stop(0.0)


async def test_a_bound_port_refuses_until_it_listens() -> None:
    server = HttpServer(handler, "127.0.0.1", 0)
    await server.start(listen=False)
    with socket.socket() as refused:
        assert refused.connect_ex(("127.0.0.1", server.port)) != 0
    await server.listen()
    with client(server) as accepted:
        assert (await answer(accepted)).startswith(b"HTTP/1.1 200")
    await server.stop(0.0)
