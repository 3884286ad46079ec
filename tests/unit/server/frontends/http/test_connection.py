"""The listener against raw sockets: order, streams, slow and disconnecting clients, timeouts, shutdown."""

import socket
import threading
import time

import pytest

from conch.protocols.http.message import NO_HEADERS, HttpRefusal, HttpRequest
from conch.protocols.http.reply import HttpReply
from tests.unit.server.frontends.http.peers import GET, Holding, echo, post


def test_a_connection_serves_one_request_after_another(listen, connect):
    peer = connect(listen(echo))
    for body in (b"one", b"", b"three"):
        peer.send(post(b"/p", body))
        status, headers, answer = peer.receive()
        assert (status, answer) == (200, b"POST /p " + body)
        assert "connection" not in headers


def test_requests_in_small_pieces(listen, connect):
    peer = connect(listen(echo))
    for byte in post(b"/slow?and=query", b"body"):
        peer.send(bytes([byte]))
    assert peer.receive()[2] == b"POST /slow body"


def test_pipelined_requests_are_answered_in_order(listen, connect):
    peer = connect(listen(echo))
    peer.send(post(b"/1", b"a") + GET + post(b"/3", b"c"))
    assert [peer.receive()[2] for _ in range(3)] == [b"POST /1 a", b"GET /a ", b"POST /3 c"]


def test_a_later_request_waits_for_the_answer_to_an_earlier_one(listen, connect, loop_thread):
    handler = Holding()
    peer = connect(listen(handler))
    peer.send(post(b"/1", b"a") + post(b"/2", b"b"))
    first, reply = handler.next()
    assert handler.held.empty()
    loop_thread.call(lambda: reply.send(200, NO_HEADERS, b"first"))
    second, reply = handler.next()
    loop_thread.call(lambda: reply.send(200, NO_HEADERS, b"second"))
    assert (first.path, second.path) == ("/1", "/2")
    assert [peer.receive()[2] for _ in range(2)] == [b"first", b"second"]


def test_thousands_of_pipelined_requests(listen, connect):
    peer = connect(listen(echo))
    peer.send(GET * 3000)
    assert {peer.receive()[2] for _ in range(3000)} == {b"GET /a "}


def test_bytes_of_a_body_that_look_like_the_last_request(listen, connect):
    """They are not recognised as a request, though they come in a separate read."""
    peer = connect(listen(echo))
    peer.send(GET)
    assert peer.receive()[2] == b"GET /a "
    peer.send(GET + b"POST /b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(GET))
    assert peer.receive()[2] == b"GET /a "
    peer.send(GET)
    assert peer.receive()[2] == b"POST /b " + GET


@pytest.mark.parametrize("size", [65_536, 65_537, 1_000_000, 5_000_000])
def test_a_large_body_arrives_whole_and_the_next_request_after_it(listen, connect, size):
    peer = connect(listen(echo))
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    peer.send(post(b"/big", body) + GET)
    assert peer.receive()[2] == b"POST /big " + body
    assert peer.receive()[2] == b"GET /a "


def test_a_large_body_behind_a_request_that_is_still_being_answered(listen, connect, loop_thread):
    handler = Holding()
    peer = connect(listen(handler))
    peer.send(GET + post(b"/big", b"x" * 300_000))
    _, first = handler.next()
    loop_thread.call(lambda: first.send(200, NO_HEADERS, b"first"))
    request, second = handler.next()
    loop_thread.call(lambda: second.send(200, NO_HEADERS, b"second"))
    assert bytes(request.body) == b"x" * 300_000
    assert [peer.receive()[2] for _ in range(2)] == [b"first", b"second"]


def test_a_large_body_of_which_a_small_part_waits_behind_pipelined_requests(listen, connect, loop_thread):
    handler = Holding()
    peer = connect(listen(handler))
    body = bytes(range(256)) * 800
    peer.send(GET * 2 + post(b"/big", body)[:20_000])
    for _ in range(2):
        _, reply = handler.next()
        loop_thread.call(lambda reply=reply: reply.send(200, NO_HEADERS, b"fine"))
        assert peer.receive()[2] == b"fine"
    peer.send(post(b"/big", body)[20_000:])
    request, _ = handler.next()
    assert bytes(request.body) == body


def test_large_answers_are_sent_whole(listen, connect):
    parts = [b"a" * 3_000_000, memoryview(b"b" * 3_000_000), b"c"]
    peer = connect(listen(lambda request, reply: reply.send(200, NO_HEADERS, *parts)))
    peer.send(GET)
    assert peer.receive()[2] == b"".join(parts)


def test_http_1_0_keeps_the_connection_only_if_asked(listen, connect):
    server = listen(echo)
    peer = connect(server)
    for _ in range(2):
        peer.send(b"GET /old HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n")
        status, headers, body = peer.receive()
        assert (status, headers["connection"], body) == (200, "keep-alive", b"GET /old ")
    once = connect(server)
    once.send(b"GET /old HTTP/1.0\r\n\r\n")
    status, headers, body = once.receive()
    assert (status, headers["connection"], body) == (200, "close", b"GET /old ")
    assert once.rest() == b""


def test_http_1_0_gets_a_stream_that_ends_with_the_connection(listen, connect):
    def stream(request: HttpRequest, reply: HttpReply) -> None:
        reply.begin(200, NO_HEADERS)
        reply.write(b"one")
        reply.end()

    peer = connect(listen(stream))
    peer.send(b"GET /old HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    head, body = peer.rest().split(b"\r\n\r\n")
    assert (b"\r\nConnection: close" in head, b"chunked" in head, body) == (True, False, b"one")


def test_connection_close_is_honoured(listen, connect):
    peer = connect(listen(echo))
    peer.send(b"GET /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert peer.receive()[1]["connection"] == "close"
    assert peer.rest() == b""


def test_head_has_no_body(listen, connect):
    peer = connect(listen(echo))
    peer.send(b"HEAD /h HTTP/1.1\r\nHost: x\r\n\r\n")
    raw = b""
    while not raw.endswith(b"\r\n\r\n"):
        raw += peer.stream.readline()
    assert b"Content-Length: 8\r\n" in raw
    peer.send(GET)
    assert peer.receive()[2] == b"GET /a "


def test_a_refusal_follows_the_answers_that_are_due(listen, connect, loop_thread):
    handler = Holding()
    peer = connect(listen(handler))
    peer.send(GET + b"nonsense\r\n\r\n")
    _, reply = handler.next()
    loop_thread.call(lambda: reply.send(200, NO_HEADERS, b"fine"))
    assert peer.receive()[2] == b"fine"
    assert peer.receive()[0] == 400
    assert peer.rest() == b""


def test_streamed_answer(listen, connect):
    def stream(request: HttpRequest, reply: HttpReply) -> None:
        reply.begin(200, b"Content-Type: text/event-stream\r\n")
        for piece in (b"one ", b"", b"two"):
            reply.write(piece)
        reply.end()

    server = listen(stream)
    peer = connect(server)
    for _ in range(2):
        peer.send(GET)
        status, headers, body = peer.receive()
        assert (status, headers["transfer-encoding"], body) == (200, "chunked", b"one two")
    old = connect(server)
    old.send(b"GET /a HTTP/1.0\r\n\r\n")
    assert old.rest().endswith(b"\r\n\r\none two")


def test_a_stream_waits_for_a_client_that_does_not_read(listen, connect, loop_thread):
    handler = Holding()
    peer = connect(listen(handler))
    peer.send(GET)
    _, reply = handler.next()
    written = []

    async def stream() -> None:
        reply.begin(200, NO_HEADERS)
        for _ in range(400):
            reply.write(b"x" * 65_536)
            written.append(1)
            await reply.drained()
        reply.end()

    async def start():
        return loop_thread.loop.create_task(stream())

    task = loop_thread.run(start())
    # The system's buffers hold a few megabytes of the 26; the stream cannot have run to its end.
    assert not task.done()
    assert len(written) < 400
    assert len(peer.receive()[2]) == 400 * 65_536
    loop_thread.run(finish(task))


async def finish(task) -> None:
    await task


def test_a_client_that_leaves_is_noticed(listen, connect, loop_thread):
    handler = Holding()
    peer = connect(listen(handler))
    peer.send(post(b"/left", b"x"))
    _, reply = handler.next()
    peer.close()
    assert handler.left.get(timeout=60) == "/left"
    assert not reply.open
    loop_thread.call(lambda: reply.send(200, NO_HEADERS, b"too late"))


@pytest.mark.parametrize(
    "head", [b"GET /a HTTP/1.0\r\n\r\n", b"GET /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"]
)
def test_a_client_that_has_announced_its_last_request_may_close_its_side(listen, connect, loop_thread, head):
    handler = Holding()
    peer = connect(listen(handler))
    peer.send(head)
    peer.socket.shutdown(socket.SHUT_WR)
    _, reply = handler.next()
    loop_thread.call(lambda: None)  # a turn of the loop, in which it reads that nothing will follow
    loop_thread.call(lambda: reply.send(200, NO_HEADERS, b"last"))
    assert peer.receive()[2] == b"last"
    assert peer.rest() == b""


def test_a_client_that_leaves_a_stream_ends_the_waiting(listen, connect, loop_thread):
    handler = Holding()
    peer = connect(listen(handler))
    peer.send(GET)
    _, reply = handler.next()

    async def stream() -> bool:
        reply.begin(200, NO_HEADERS)
        while reply.open:
            reply.write(b"x" * 65_536)
            await reply.drained()
        return True

    async def start():
        return loop_thread.loop.create_task(stream())

    task = loop_thread.run(start())
    peer.close()
    assert handler.left.get(timeout=60) == "/a"
    loop_thread.run(finish(task))
    assert task.result()


def test_a_client_that_leaves_after_its_answer_is_not_reported(listen, connect, loop_thread):
    handler = Holding()
    server = listen(handler)
    peer = connect(server)
    peer.send(GET)
    _, reply = handler.next()
    loop_thread.call(lambda: reply.send(200, NO_HEADERS, b"done"))
    peer.receive()
    peer.close()
    other = connect(server)
    other.send(GET)
    handler.next()
    assert handler.left.empty()


def test_a_handler_that_fails_costs_its_own_request_only(listen, connect, caplog):
    def fail(request: HttpRequest, reply: HttpReply) -> None:
        if request.path == "/fail":
            raise ZeroDivisionError
        echo(request, reply)

    peer = connect(listen(fail))
    peer.send(b"GET /fail HTTP/1.1\r\nHost: x\r\n\r\n" + GET)
    assert peer.receive()[0] == 500
    assert peer.receive()[0] == 200
    assert "ZeroDivisionError" in caplog.text


def test_a_handler_that_fails_in_the_middle_of_a_stream_ends_the_connection(listen, connect, caplog):
    def fail(request: HttpRequest, reply: HttpReply) -> None:
        reply.begin(200, NO_HEADERS)
        reply.write(b"half of")
        raise ZeroDivisionError

    peer = connect(listen(fail))
    peer.send(GET)
    assert not peer.rest().endswith(b"0\r\n\r\n")
    assert "ZeroDivisionError" in caplog.text


def test_connections_beyond_the_limit_are_refused(listen, connect):
    server = listen(echo, limits={"connections": 2})
    peers = [connect(server) for _ in range(2)]
    for peer in peers:
        peer.send(GET)
        assert peer.receive()[0] == 200
    surplus = connect(server)
    assert surplus.receive()[0] == 503
    assert surplus.rest() == b""
    peers[0].send(GET)
    assert peers[0].receive()[0] == 200


@pytest.mark.slow
def test_an_idle_connection_is_closed_in_the_end(listen, connect):
    peer = connect(listen(echo, limits={"idle_s": 0.0}))
    assert peer.rest() == b""


@pytest.mark.slow
@pytest.mark.parametrize(
    "beginning",
    [
        pytest.param(b"GET /a HT", id="head"),
        pytest.param(b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc", id="body"),
        pytest.param(b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nabc", id="body in place"),
    ],
)
def test_a_request_that_does_not_get_complete_is_given_up(listen, connect, beginning):
    peer = connect(listen(echo, limits={"receive_grace_s": 0.0}))
    peer.send(beginning)
    assert peer.receive()[0] == 408
    assert peer.rest() == b""


@pytest.mark.parametrize(
    ("refused_s", "sends", "closed"),
    [
        pytest.param(20, True, False, id="sends"),
        pytest.param(20, False, True, id="silent"),
        pytest.param(40, True, True, id="endless"),
    ],
)
def test_a_refused_client_may_send_its_body_for_a_while(listen, connect, loop_thread, refused_s, sends, closed):
    server = listen(echo, refusal=lambda _: HttpRefusal(401, "credentials are missing"))
    peer = connect(server)
    head = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
    peer.send(head)
    assert peer.receive()[0] == 401
    (connection,) = server._connections

    def pass_time() -> None:
        connection.sender.since -= refused_s
        connection.receiver.since -= refused_s

    def sweep() -> bool:
        server.clock.now = loop_thread.loop.time()
        connection.sweep()
        return connection._transport.is_closing()

    loop_thread.call(pass_time)
    if sends:
        peer.send(b"part of the body")
        while loop_thread.call(lambda: server.traffic.received_bytes) == len(head):
            pass
    assert loop_thread.call(sweep) is closed


@pytest.mark.slow
def test_a_client_that_reads_slowly_gets_all_of_its_answer(listen, connect, loop_thread):
    size = 30_000_000
    server = listen(lambda _, reply: reply.send(200, NO_HEADERS, bytes(size)), limits={"stalled_write_s": 1000.0})
    peer = connect(server)
    peer.send(b"GET /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    got = len(peer.socket.recv(1))
    (connection,) = server._connections

    def check_later() -> None:
        server.clock.now += 600
        connection.sweep()

    for _ in range(5):  # longer than a stall may last, and than a client that was refused is waited for
        loop_thread.call(check_later)
        unsent = loop_thread.call(lambda: connection.unsent_bytes)
        while unsent == loop_thread.call(lambda: connection.unsent_bytes):
            got += len(peer.socket.recv(1_000_000))
    while got < size and (data := peer.socket.recv(1_000_000)):
        got += len(data)
    assert got >= size


@pytest.mark.slow
def test_answers_wait_for_a_client_that_does_not_read_them(listen, connect, loop_thread):
    """A read may hold thousands of requests with large answers: they are not computed ahead of their reader."""
    answered = []

    def answer(request: HttpRequest, reply: HttpReply) -> None:
        answered.append(request)
        reply.send(200, NO_HEADERS, bytes(20_000))

    peer = connect(listen(answer))
    sender = threading.Thread(target=peer.send, args=(GET * 20_000,), daemon=True)
    sender.start()
    before = 0
    while not before or before != loop_thread.call(lambda: len(answered)):
        before = loop_thread.call(lambda: len(answered))
        time.sleep(0.2)
    assert 0 < before < 2_000
    assert all(len(peer.receive()[2]) == 20_000 for _ in range(20_000))
    sender.join()


@pytest.mark.slow
def test_a_client_that_does_not_read_its_answer_is_cut_off(listen, connect, loop_thread):
    handler = Holding()
    peer = connect(listen(handler, limits={"stalled_write_s": 0.0}))
    peer.send(GET)
    _, reply = handler.next()

    def answer() -> None:
        reply.begin(200, NO_HEADERS)
        reply.write(b"x" * 50_000_000)

    loop_thread.call(answer)
    assert handler.left.get(timeout=60) == "/a"


def test_stopping_lets_what_is_being_answered_finish(listen, connect, loop_thread):
    handler = Holding()
    server = listen(handler)
    idle, busy = connect(server), connect(server)
    busy.send(GET)
    _, reply = handler.next()

    async def stop():
        return loop_thread.loop.create_task(server.stop(20))

    stopping = loop_thread.run(stop())
    assert idle.rest() == b""
    with pytest.raises(OSError, match="refused"):
        connect(server)
    loop_thread.call(lambda: reply.send(200, NO_HEADERS, b"last"))
    _, headers, body = busy.receive()
    assert (headers["connection"], body) == ("close", b"last")
    assert busy.rest() == b""
    loop_thread.run(finish(stopping))


def test_stopping_does_not_wait_for_ever(listen, connect, loop_thread):
    handler = Holding()
    server = listen(handler)
    peer = connect(server)
    peer.send(GET)
    handler.next()
    loop_thread.run(server.stop(0.01))
    assert handler.left.get(timeout=60) == "/a"
    assert server.connections == 0


def test_what_is_read_at_once_is_parsed_in_slices_without_loss_or_disorder(listen, connect):
    """Among small requests there are bodies that reach over slices, and one that is received in place."""
    bodies = [b"%d" % i * (1 + i % 7 * 3000) for i in range(40)] + [b"z" * 200_000]
    peer = connect(listen(echo))
    sender = threading.Thread(target=lambda: peer.send(b"".join(GET * 50 + post(b"/p", body) for body in bodies)))
    sender.start()
    for body in bodies:
        assert [peer.receive()[2] for _ in range(50)] == [b"GET /a "] * 50
        assert peer.receive()[2] == b"POST /p " + body
    sender.join()
