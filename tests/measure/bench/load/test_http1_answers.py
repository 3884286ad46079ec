"""What the load generator makes of HTTP/1.1 answers, good and bad, from servers that send any bytes."""

import socket
import struct
import time

import numpy as np
import pytest

from conch.measure.bench.generator import Answer, Cancel, ClosedLoop, ExpectedAnswer, PreparedRequest
from conch.measure.bench.records import RequestOutcome
from tests.measure.bench.load.running import plan, run
from tests.measure.bench.load.servers import ANSWER, HEAD, Handler, answering, read_request, serving

OK = RequestOutcome.OK
WRONG = RequestOutcome.WRONG_ANSWER
BROKEN = RequestOutcome.CONNECTION_ERROR

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
WELL_FORMED = {
    "length": ANSWER,
    "chunked": CHUNKED + b'5\r\n{"a":\r\n6;x=y\r\n [1]}\n\r\n0\r\nTrailer: x\r\n\r\n',
    "continue": b"HTTP/1.1 100 Continue\r\n\r\n" + ANSWER,
    "no content": b"HTTP/1.1 204 No Content\r\nServer: x\r\n\r\n",
    "not modified": b"HTTP/1.1 200 OK\r\ncontent-length:0\r\n\r\n",
    "keep-alive of 1.0": b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 2\r\n\r\n{}",
}


def in_pieces(answer: bytes) -> Handler:
    def handle(peer: socket.socket) -> None:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while read_request(peer):
            for byte in answer:
                peer.send(bytes((byte,)))
                time.sleep(0.0002)

    return handle


@pytest.mark.parametrize("answer", WELL_FORMED.values(), ids=WELL_FORMED.keys())
@pytest.mark.parametrize("pieces", [False, True], ids=["whole", "in bytes"])
def test_well_formed_answers_are_read(answer: bytes, pieces: bool) -> None:
    connections = []
    handler = in_pieces(answer) if pieces else answering(answer)

    def handle(peer: socket.socket) -> None:
        connections.append(peer)
        handler(peer)

    with serving(handle) as port:
        ran = run(plan(port, requests=4))
    assert ran.outcomes == {OK: 4}
    assert set(ran.records["received_bytes"]) == {len(answer)}
    assert len(connections) == 2  # one to see whether the server is there, one for the requests


@pytest.mark.parametrize(
    "answer",
    [b"HTTP/1.1 200 OK\r\n\r\nuntil the end", b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"],
)
def test_a_server_that_closes_after_each_answer_is_connected_to_again(answer: bytes) -> None:
    def handle(peer: socket.socket) -> None:
        if read_request(peer):
            peer.sendall(answer)

    with serving(handle) as port:
        ran = run(plan(port, None, ClosedLoop(3), requests=30))
    assert ran.outcomes == {OK: 30}
    assert ran.errors == []


MALFORMED = {
    "no HTTP": (b"SSH-2.0-OpenSSH_9.2\r\n", "expected an HTTP/1.1 response, got b'SSH-2.0"),
    "status": (
        b"HTTP/1.1 abc\r\n\r\n",
        "expected an HTTP/1.1 response, got b'HTTP/1.1 abc\\r\\n\\r\\n': Invalid status code",
    ),
    "field": (b"HTTP/1.1 200 OK\r\nnonsense\r\n\r\n", "nonsense\\r\\n\\r\\n': Invalid header token"),
    "length": (b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\n", ": Invalid character in Content-Length"),
    "two lengths": (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n", ": Duplicate Content-Length"),
    "coding": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", "Transfer-Encoding 'gzip' is not supported"),
    "excess": (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}xyz", "sent more bytes than the answer has"),
    "chunk size": (CHUNKED + b"zz\r\n", "the body of the answer is malformed: Invalid character in chunk size"),
    "chunk end": (CHUNKED + b"1\r\nabc", "the body of the answer is malformed: Expected LF after chunk data"),
    "behind the end": (CHUNKED + b"0\r\n\r\nabc", "sent more bytes than the answer has"),
    "huge head": (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000, "has more than 65536 bytes"),
    "switch": (b"HTTP/1.1 101 Switching\r\n\r\n", "switched protocols"),
}


@pytest.mark.parametrize(("answer", "message"), MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_answers_are_wrong_answers(answer: bytes, message: str) -> None:
    with serving(answering(answer)) as port:
        ran = run(plan(port, requests=2))
    assert ran.outcomes == {WRONG: 2}
    assert message in ran.errors[0]


def test_bytes_that_answer_no_request_end_the_connection() -> None:
    def handle(peer: socket.socket) -> None:
        while read_request(peer):
            peer.sendall(ANSWER)
            time.sleep(0.02)
            peer.sendall(b"more")

    with serving(handle) as port:
        ran = run(plan(port, None, ClosedLoop(1, think_s=2.0), requests=2))
    assert ran.outcomes == {OK: 2}


def test_half_answers_and_resets_are_connection_errors() -> None:
    turns = iter(range(100))

    def handle(peer: socket.socket) -> None:
        if not read_request(peer):
            return
        turn = next(turns)
        if turn % 4 == 1:
            peer.sendall(ANSWER[:30])
        elif turn % 4 == 2:
            peer.sendall(ANSWER[:-3])
        elif turn % 4 == 3:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # resets when closed

    with serving(handle) as port:
        ran = run(plan(port, requests=8))
    assert ran.outcomes == {BROKEN: 8}
    text = "\n".join(ran.errors)
    assert "without an answer" in text
    assert "within the head" in text
    assert "within the answer, after 79 bytes" in text
    assert "Connection reset by peer" in text


@pytest.mark.parametrize(
    ("status", "outcome"),
    [(400, "CLIENT_ERROR"), (404, "CLIENT_ERROR"), (302, "CLIENT_ERROR"), (429, "REJECTED"), (503, "REJECTED"),
     (500, "SERVER_ERROR"), (504, "SERVER_ERROR")],
)  # fmt: skip
def test_statuses_have_their_outcomes(status: int, outcome: str) -> None:
    body = b'{"error": "because"}'
    answer = b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)
    with serving(answering(answer)) as port:
        ran = run(plan(port, None, ClosedLoop(2), requests=6))
    assert ran.outcomes == {RequestOutcome[outcome]: 6}
    assert set(ran.records["status"]) == {status}
    assert set(ran.errors) == {f'HTTP {status}: {{"error": "because"}}'}


class Contains(ExpectedAnswer):
    def __init__(self, part: bytes) -> None:
        self.part = part

    def difference(self, answer: Answer) -> str:
        return "" if self.part in answer.body else f"{self.part!r} is missing"


def test_answers_are_compared_with_the_expected_ones() -> None:
    requests = [
        PreparedRequest(0, HEAD, b"{}", expected=Contains(b"[1]")),
        PreparedRequest(1, HEAD, b"{}", expected=Contains(b"[2]")),
    ]
    with serving(answering(ANSWER)) as port:
        ran = run(plan(port, requests, requests=6))
    assert ran.outcomes == {OK: 3, WRONG: 3}
    assert set(ran.records["request"][ran.records["outcome"] == WRONG]) == {1}
    assert set(ran.errors) == {"b'[2]' is missing"}


def silent(peer: socket.socket) -> None:
    while read_request(peer):
        pass


def test_an_answer_that_never_comes_is_a_timeout() -> None:
    with serving(silent) as port:
        ran = run(plan(port, None, ClosedLoop(2), timeout_s=0.2, requests=4))
    assert ran.outcomes == {RequestOutcome.TIMEOUT: 4}
    assert set(ran.errors) == {"no complete answer within 0.2 s"}
    assert ran.latencies_s.min() >= 0.2


def test_what_is_in_flight_at_the_end_is_unfinished() -> None:
    sent = []

    def handle(peer: socket.socket) -> None:
        while request := read_request(peer):
            sent.append(request)

    with serving(handle) as port:
        ran = run(plan(port, None, ClosedLoop(2)), stop_when=lambda _: len(sent) == 2, grace_s=0.1)
    assert ran.outcomes == {RequestOutcome.UNFINISHED: 2}


def test_requests_are_cancelled_after_their_time() -> None:
    closed = []

    def handle(peer: socket.socket) -> None:
        read_request(peer)
        closed.append(peer.recv(1) == b"")

    with serving(handle) as port:
        request = PreparedRequest(0, HEAD, b"{}", cancel=Cancel.AFTER_TIME, cancel_after=30)
        ran = run(plan(port, [request], requests=3))
    assert ran.outcomes == {RequestOutcome.CANCELLED: 3}
    assert all(closed)
    assert ran.latencies_s.min() >= 0.03


def test_an_answer_before_the_cancellation_counts() -> None:
    with serving(answering(ANSWER)) as port:
        request = PreparedRequest(0, HEAD, b"{}", cancel=Cancel.AFTER_TIME, cancel_after=5_000)
        ran = run(plan(port, [request], requests=3))
    assert ran.outcomes == {OK: 3}


def test_large_requests_and_answers_pass() -> None:
    body = b"x" * 3_000_000
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    with serving(answering(answer)) as port:
        ran = run(plan(port, [PreparedRequest(0, HEAD, body)], ClosedLoop(2), requests=6))
    assert ran.outcomes == {OK: 6}
    assert set(ran.records["received_bytes"]) == {len(answer)}
    assert ran.records["sent_bytes"].min() > len(body)


def test_a_server_that_dies_does_not_make_the_client_spin() -> None:
    served = 0

    def handle(peer: socket.socket) -> None:
        nonlocal served
        while served < 20 and read_request(peer):
            served += 1
            peer.sendall(ANSWER)

    with serving(handle) as port:
        until = 0.0

        def is_over(count: int) -> bool:
            nonlocal until
            if not until and count >= 24:
                until = time.monotonic() + 1.5
            return 0 < until < time.monotonic()

        ran = run(plan(port, None, ClosedLoop(4)), stop_when=is_over)
    assert ran.outcomes[OK] >= 20
    # A client that retries without a pause fails tens of thousands of times a second.
    seconds = np.ptp(ran.records["done_ns"]) / 1e9
    assert 4 <= ran.outcomes[BROKEN] < 300 * max(seconds, 1)


def test_headers_of_the_endpoint_go_with_each_request() -> None:
    seen = []

    def handle(peer: socket.socket) -> None:
        while request := read_request(peer):
            seen.append(request)
            peer.sendall(ANSWER)

    with serving(handle) as port:
        run(plan(port, headers=(("authorization", "Bearer x"),), requests=1))
        expected = HEAD + f"Host: 127.0.0.1:{port}\r\nauthorization: Bearer x\r\nContent-Length: 2\r\n\r\n{{}}".encode()
    assert seen == [expected]
