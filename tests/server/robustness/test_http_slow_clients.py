"""Clients of the HTTP port that break the rules of good behaviour, or of HTTP: the others do not notice."""

import socket
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.server.robustness.slow_clients import (
    MIB,
    binary_request,
    connect,
    descriptors,
    endured,
    infer_request,
    read_all,
    reset,
    send_what_it_takes,
    until,
    write_models,
)
from tests.support.server_process import ConchProcess

GET = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"


def http(conch: ConchProcess, **options: int) -> socket.socket:
    return connect(conch.ports["http"], **options)


def status(answer: bytes) -> int:
    assert answer.startswith(b"HTTP/1.1 "), answer
    return int(answer[9:12])


def test_senders_of_a_byte_at_a_time(conch: ConchProcess) -> None:
    request = infer_request("echo", [1.0])
    with endured(conch, 32 * MIB) as others, ExitStack() as stack:
        clients = [stack.enter_context(http(conch)) for _ in range(200)]
        for at in range(len(request) - 1):
            for client in clients[at % 10 :: 10]:  # so that all stages are there at once
                client.send(request[at : at + 1])
            if at % 20 == 0:
                others.served()
        for client in clients:
            reset(client)


def test_senders_that_fall_silent(conch: ConchProcess) -> None:
    """Each stops at another place; the listener's own test shows that they are sent away in the end."""
    request = infer_request("echo", [1.0] * 20)
    large = binary_request("echo", 1_000_000)
    with endured(conch, 64 * MIB) as others, ExitStack() as stack:
        for at in range(1, len(request)):
            stack.enter_context(http(conch)).sendall(request[:at])
        for at in range(0, len(large), 40_000):
            stack.enter_context(http(conch)).sendall(large[:at])
        others.served()


def test_a_body_that_is_announced_and_not_sent(conch: ConchProcess) -> None:
    head = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\n"
    head += b"Inference-Header-Content-Length: 99\r\nContent-Length: %d\r\n\r\n"
    with endured(conch, 64 * MIB) as others, ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(http(conch)).sendall(head % (2**31 - 1) + b"{")
        others.served()


def test_readers_that_do_not_read(conch: ConchProcess) -> None:
    """What is held for a client is at most the answer to one request, whatever it asks beyond that."""
    requests = b"GET /v2/models/echo/config HTTP/1.1\r\nHost: x\r\n\r\n" * 300_000
    large = binary_request("echo", 4 * MIB)
    with endured(conch, 160 * MIB) as others, ExitStack() as stack:
        for _ in range(3):
            client = stack.enter_context(http(conch, buffers=8192))
            assert send_what_it_takes(client, requests) < len(requests)
        for _ in range(5):
            client = stack.enter_context(http(conch, buffers=8192))
            # The system buffers up to 32 MiB of these (tcp_rmem), and client and server a few more.
            assert send_what_it_takes(client, large * 12) < 12 * len(large)
        others.served()


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_client_that_closes_its_side_after_its_last_request_is_answered(conch: ConchProcess, version: str) -> None:
    with endured(conch, 32 * MIB), http(conch) as client:
        client.sendall(infer_request("slow", [2.5], "Connection: close", version=version))
        client.shutdown(socket.SHUT_WR)
        answer = read_all(client)
    assert status(answer) == 200
    assert b'"data":[2.5]' in answer


def test_a_client_that_closes_its_side_in_the_middle_has_gone(conch: ConchProcess) -> None:
    request = infer_request("slow", [2.5])
    with endured(conch, 32 * MIB):
        for cut in (10, len(request) - 5, len(request)):
            with http(conch) as client:
                client.sendall(request[:cut])
                client.shutdown(socket.SHUT_WR)
                assert read_all(client) == b""


def test_resets_in_every_phase(conch: ConchProcess) -> None:
    request = infer_request("parallel", [1.0])
    large = binary_request("echo", 4 * MIB)
    with endured(conch, 160 * MIB) as others:
        for _ in range(20):
            for sent in (b"", request[:30], request[:-5], request, request * 3, large[:500_000]):
                client = http(conch)
                client.sendall(sent)
                reset(client)
            reader = http(conch)
            reader.sendall(large)
            reader.recv(1000)
            reset(reader)
        others.served()


def test_five_thousand_connections(conch: ConchProcess) -> None:
    with descriptors(6_000), endured(conch, 160 * MIB) as others, ExitStack() as stack:
        clients = [stack.enter_context(http(conch)) for _ in range(5_000)]
        others.served()
        for client in clients[::100]:
            client.sendall(GET)
            assert status(client.recv(4096)) == 200


def test_more_connections_than_the_server_may_open(tmp_path: Path) -> None:
    """A client beyond the limit gets an error; other uses have descriptors, and there is room when clients leave."""
    write_models(tmp_path / "models")
    with (
        ConchProcess(tmp_path / "models", log=tmp_path / "conch.log", descriptors=400) as conch,
        endured(conch, 32 * MIB) as others,
    ):
        with ExitStack() as stack:
            clients = [stack.enter_context(http(conch)) for _ in range(120)]
            answers = []
            for client in clients:
                client.sendall(GET)
                answers.append(status(client.recv(4096)))
            assert answers[0] == 200
            assert set(answers) == {200, 503}
            others.served()

        def room() -> bool:
            with http(conch) as client:
                client.sendall(GET)
                return status(client.recv(4096)) == 200

        until(room, "there is no room again")


def test_hundreds_of_requests_in_one_write(conch: ConchProcess) -> None:
    with endured(conch, 64 * MIB), http(conch) as client:
        last = infer_request("echo", [500.0], "Connection: close")
        client.sendall(b"".join(infer_request("echo", [float(i)]) for i in range(500)) + last)
        answers = read_all(client)
    assert answers.count(b"HTTP/1.1 200 OK") == 501
    at = [answers.index(b'"data":[%d.0]' % i) for i in range(501)]
    assert at == sorted(at)


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 100_000, id="many"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\nLong: " + b"a" * 5_000_000, id="long"),
        pytest.param(b"GET /" + b"a" * 5_000_000, id="target"),
    ],
)
def test_header_floods(conch: ConchProcess, head: bytes) -> None:
    with endured(conch, 32 * MIB) as others:
        for _ in range(20):
            with http(conch) as client:
                send_what_it_takes(client, head)
                assert status(read_all(client)) == 431
        others.served()


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param(b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", id="length and chunks"),
        pytest.param(b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", id="chunks and length"),
        pytest.param(b"Content-Length: 5\r\nContent-Length: 6\r\n", id="two lengths"),
        pytest.param(b"Content-Length: 5\r\nContent-Length: 5\r\n", id="equal lengths"),
        pytest.param(b"Content-Length: 5, 5\r\n", id="list of lengths"),
        pytest.param(b"Content-Length: +5\r\n", id="sign"),
        pytest.param(b"Content-Length: 0x5\r\n", id="hexadecimal"),
        pytest.param(b"Content-Length: 5 5\r\n", id="two numbers"),
        pytest.param(b"Content-Length : 5\r\n", id="space before the colon"),
        pytest.param(b"Content-Length:\r\n", id="no length"),
        pytest.param(b"Transfer-Encoding: gzip\r\n", id="not chunked"),
        pytest.param(b"Transfer-Encoding: chunked, identity\r\n", id="chunked is not last"),
        pytest.param(b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", id="two codings"),
        pytest.param(b"Transfer-Encoding: xchunked\r\n", id="unknown coding"),
        pytest.param(b"Transfer-Encoding:\x0bchunked\r\n", id="vertical tab"),
        pytest.param(b"A: b\r\n Content-Length: 5\r\n", id="folded line"),
        pytest.param(b"A: b\nContent-Length: 5\r\n", id="bare line feed"),
        pytest.param(b"A: b\rContent-Length: 5\r\n", id="bare carriage return"),
        pytest.param(b"A: b\0c\r\n", id="NUL"),
        pytest.param(b"A\0: b\r\n", id="NUL in a name"),
        pytest.param(b": b\r\n", id="no name"),
        pytest.param(b"A B: c\r\n", id="space in a name"),
    ],
)
def test_what_two_readers_may_read_in_two_ways_is_refused(conch: ConchProcess, fields: bytes) -> None:
    smuggled = b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n"
    with http(conch) as client:
        client.sendall(b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\n" + fields + b"\r\nhello" + smuggled)
        answer = read_all(client)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert status(answer) == 400
    assert b"Connection: close" in answer


_CHUNKED = b"POST /v2/repository/index HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([_CHUNKED + b"7fffffffffffffff\r\n"], id="with the head"),
        pytest.param([_CHUNKED, b"7fffffffffffffff\r\n"], id="after the head"),
        pytest.param([_CHUNKED + b"fFFFFFFFFFFFFFF;a=b\r\n{"], id="with an extension and a beginning"),
        pytest.param([_CHUNKED + b"1\r\n{\r\n", b"4000000\r\n" + b" " * 5000], id="the second chunk"),
    ],
)
def test_chunks_that_announce_too_much(conch: ConchProcess, pieces: list[bytes]) -> None:
    """They are refused before they come, as bodies are whose length is announced."""
    with connect(conch.ports["http"]) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            client.sendall(piece)
            time.sleep(0.05)  # most often, each is a read; what is asserted holds if not
        answer = read_all(client)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"exceeds the maximum of 131072 bytes" in answer


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([b"5;x=ff", b"ffffffff\r\n{   }\r\n0\r\n\r\n"], id="an extension like a size"),
        pytest.param([b"0000000", b"2\r\n", b"{", b"}", b"\r\n0\r\n\r\n"], id="a size"),
    ],
)
def test_chunk_sizes_that_come_in_pieces(conch: ConchProcess, pieces: list[bytes]) -> None:
    with connect(conch.ports["http"]) as client:
        for piece in (_CHUNKED, *pieces):
            client.sendall(piece)
            time.sleep(0.05)
        client.shutdown(socket.SHUT_WR)
        assert status(read_all(client)) == 200


@pytest.mark.parametrize(
    "chunks",
    [
        pytest.param(b"5;ext=1\nhello\r\n0\r\n\r\n", id="line feed behind an extension"),
        pytest.param(b"5\r\nhelloX0\r\n\r\n", id="no end of a chunk"),
        pytest.param(b"-5\r\nhello\r\n0\r\n\r\n", id="negative"),
        pytest.param(b"0x5\r\nhello\r\n0\r\n\r\n", id="prefix"),
        pytest.param(b" 5\r\nhello\r\n0\r\n\r\n", id="space"),
        pytest.param(b"ffffffffffffffffff\r\nhello\r\n0\r\n\r\n", id="overflow"),
        pytest.param(b"5\rhello\r\n0\r\n\r\n", id="bare carriage return"),
    ],
)
def test_chunks_that_are_none(conch: ConchProcess, chunks: bytes) -> None:
    with http(conch) as client:
        client.sendall(
            b"POST /v2/repository/index HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + GET
        )
        answer = read_all(client)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert status(answer) == 400
