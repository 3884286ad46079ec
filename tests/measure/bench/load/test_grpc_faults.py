"""gRPC against servers that limit, refuse, end or violate: every request ends, with the right outcome and reason."""

import itertools
import socket
import time

import h2.errors
import h2.events
import pytest
import trustme
from h2.settings import SettingCodes

from conch.measure.bench.generator import Cancel, ClosedLoop, Tls
from conch.measure.bench.records import RequestOutcome
from conch.protocols.http2 import frames
from tests.measure.bench.load.grpc_peer import grpc_peer
from tests.measure.bench.load.grpc_plans import grpc_plan, streamed, unary
from tests.measure.bench.load.h2_peer import ANSWER, HEAD, TRAILERS, H2Call, h2_peer, listening
from tests.measure.bench.load.running import run

REQUESTS = 12
OK = {RequestOutcome.OK: REQUESTS}


def answer_all(call: H2Call) -> None:
    while True:
        call.answer(call.next_call())


def outcomes(port, request=None, users=4, **plan):
    return run(grpc_plan(port, [request or unary("m")], ClosedLoop(users), requests=REQUESTS, **plan))


@pytest.mark.parametrize(
    "settings",
    [
        {SettingCodes.MAX_CONCURRENT_STREAMS: 1},
        {SettingCodes.INITIAL_WINDOW_SIZE: 7},
        {SettingCodes.HEADER_TABLE_SIZE: 0},
        {SettingCodes.HEADER_TABLE_SIZE: 100},
    ],
    ids=str,
)
def test_settings_of_the_server(settings):
    with h2_peer(answer_all, settings) as port:
        ran = outcomes(port, unary("m", bytes(3000)))
    assert ran.outcomes == OK, ran.errors


def test_settings_that_change():
    def serve(call):
        for turn in itertools.count():
            stream = call.next_call()
            table = (0, 4096, 64)[turn % 3]
            call.h2.update_settings(
                {SettingCodes.HEADER_TABLE_SIZE: table, SettingCodes.INITIAL_WINDOW_SIZE: 65_535 + turn}
            )
            call.answer(stream)

    with h2_peer(serve) as port:
        assert outcomes(port).outcomes == OK


def test_one_stream_for_several_users():
    with grpc_peer(grpc__max_concurrent_streams=1) as port:
        assert outcomes(port, unary("slow"), connections=1).outcomes == OK
        assert outcomes(port, streamed("tokens"), connections=1).outcomes == OK


def test_requests_that_goaway_leaves_out_are_sent_again():
    connections = itertools.count()

    def serve(call):
        if next(connections):
            answer_all(call)
        first = call.next_call()
        call.next_call()
        call.h2.close_connection(last_stream_id=first)
        goaway = call.h2.data_to_send()
        call.sock.sendall(goaway)
        block = b"\x88\x5f\x10application/grpc"
        trailers = b"\0\x0bgrpc-status\x010"
        call.sock.sendall(
            frames.frame_head(len(block), frames.HEADERS, frames.END_HEADERS, first)
            + block
            + frames.frame_head(len(ANSWER), frames.DATA, 0, first)
            + ANSWER
            + frames.frame_head(len(trailers), frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, first)
            + trailers
        )
        while call.sock.recv(4096):
            pass

    with h2_peer(serve) as port:
        ran = outcomes(port, connections=1)
    assert ran.outcomes == OK, ran.errors


def test_goaway_while_in_flight_from_grpc():
    with grpc_peer(grpc__max_connection_age_ms=100, grpc__max_connection_age_grace_ms=5000) as port:
        ran = run(grpc_plan(port, [unary("slow")], ClosedLoop(3), requests=150))
    assert ran.outcomes == {RequestOutcome.OK: 150}, ran.errors


def test_a_refused_stream_is_sent_again_and_not_for_ever():
    def refuse_some(call):
        for turn in itertools.count():
            stream = call.next_call()
            if turn % 3 == 0:
                call.h2.reset_stream(stream, h2.errors.ErrorCodes.REFUSED_STREAM)
                call.flush()
            else:
                call.answer(stream)

    def refuse_all(call):
        while True:
            call.h2.reset_stream(call.next_call(), h2.errors.ErrorCodes.REFUSED_STREAM)
            call.flush()

    with h2_peer(refuse_some) as port:
        assert outcomes(port, users=1).outcomes == OK
    with h2_peer(refuse_all) as port:
        ran = outcomes(port, users=1)
    assert ran.outcomes == {RequestOutcome.REJECTED: REQUESTS}
    assert set(ran.errors) == {"the server refused the stream"}


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (h2.errors.ErrorCodes.INTERNAL_ERROR, RequestOutcome.CONNECTION_ERROR),
        (h2.errors.ErrorCodes.ENHANCE_YOUR_CALM, RequestOutcome.REJECTED),
    ],
)
@pytest.mark.parametrize("request_", [unary("m"), streamed("m")], ids=["unary", "stream"])
def test_a_reset(code, outcome, request_):
    def serve(call):
        while True:
            call.h2.reset_stream(call.next(h2.events.DataReceived).stream_id, code)
            call.flush()

    with h2_peer(serve) as port:
        ran = outcomes(port, request_)
    assert ran.outcomes == {outcome: REQUESTS}
    assert set(ran.errors) == {f"the server reset the stream: {code.name}"}


@pytest.mark.parametrize(
    ("head", "messages", "trailers", "outcome", "error"),
    [
        (HEAD, ANSWER, [("x", "y")], RequestOutcome.WRONG_ANSWER, "the answer ended without grpc-status"),
        (HEAD, b"", TRAILERS, RequestOutcome.WRONG_ANSWER, "0 messages in the answer of a unary call"),
        (HEAD, ANSWER * 2, TRAILERS, RequestOutcome.WRONG_ANSWER, "2 messages in the answer of a unary call"),
        (HEAD, ANSWER[:6], TRAILERS, RequestOutcome.WRONG_ANSWER, "the answer ended within a message"),
        (HEAD, b"\1" + ANSWER[1:], TRAILERS, RequestOutcome.WRONG_ANSWER, "a compressed message"),
        ([(":status", "503")], b"busy", [("x", "y")], RequestOutcome.REJECTED, "HTTP 503 without grpc-status"),
        ([(":status", "200"), ("content-type", "a/b")], b"<p>", [("x", "y")], RequestOutcome.WRONG_ANSWER, "'a/b'"),
        (HEAD, ANSWER, [("grpc-status", "nought")], RequestOutcome.SERVER_ERROR, "UNKNOWN"),
        (HEAD, b"", [("grpc-status", "13"), ("grpc-message", "%E2%82%AC %zz")], RequestOutcome.SERVER_ERROR, "€ %zz"),
    ],
)  # fmt: skip
def test_answers_that_are_not_well_formed(head, messages, trailers, outcome, error):
    def serve(call):
        while True:
            stream = call.next_call()
            call.h2.send_headers(stream, head)
            for at in range(0, len(messages), 3):  # prefixes and messages in pieces
                call.h2.send_data(stream, messages[at : at + 3], pad_length=at)
            call.h2.send_headers(stream, trailers, end_stream=True)
            call.flush()

    with h2_peer(serve) as port:
        ran = outcomes(port)
    assert ran.outcomes == {outcome: REQUESTS}
    assert all(error in message for message in ran.errors)
    assert len(ran.errors) == REQUESTS


def test_pings_interim_heads_and_bytes_one_by_one():
    def serve(call):
        while True:
            stream = call.next_call()
            call.h2.ping(b"12345678")
            call.h2.send_headers(stream, [(":status", "103")])
            call.h2.send_headers(stream, [*HEAD, ("x-long", "v" * 40_000)])  # with CONTINUATION
            call.h2.send_data(stream, ANSWER, pad_length=9)
            call.h2.send_headers(stream, TRAILERS, end_stream=True)
            data = call.h2.data_to_send()
            for at in range(200):
                call.sock.sendall(data[at : at + 1])
            call.sock.sendall(data[200:])
            call.next(h2.events.PingAckReceived)

    with h2_peer(serve) as port:
        assert outcomes(port, users=1).outcomes == OK


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP/1.1"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "expected SETTINGS"),
        (b"", "closed the connection before its HTTP/2 settings"),
    ],
)
def test_a_server_that_is_not_http2(first, reason):
    def serve(sock: socket.socket) -> None:
        sock.recv(4096)
        sock.sendall(first)

    with listening(serve) as port, pytest.raises(ConnectionError, match=reason):
        outcomes(port)


def test_a_server_that_closes_while_in_flight():
    def serve(call):
        for _ in range(2):
            call.answer(call.next_call())
        call.next_call()

    with h2_peer(serve) as port:
        ran = outcomes(port, users=1)
    assert ran.outcomes == {RequestOutcome.OK: 8, RequestOutcome.CONNECTION_ERROR: 4}


@pytest.mark.parametrize("request_", [unary("never"), streamed("silent"), streamed("endless")])
def test_requests_without_end_time_out(request_):
    with grpc_peer() as port:
        ran = run(grpc_plan(port, [request_], ClosedLoop(2), requests=2, timeout_s=0.3))
    assert ran.outcomes == {RequestOutcome.TIMEOUT: 2}


@pytest.mark.parametrize(
    "request_",
    [
        unary("never", cancel=Cancel.AFTER_TIME, cancel_after=100),
        streamed("endless", cancel=Cancel.AFTER_RESPONSES, cancel_after=3),
    ],
    ids=["unary", "stream"],
)
def test_the_server_sees_cancellations(request_):
    with grpc_peer() as port:
        ran = run(grpc_plan(port, [request_], ClosedLoop(2), requests=6))
        assert ran.outcomes == {RequestOutcome.CANCELLED: 6}
        deadline = time.monotonic() + 60
        while (calls := cancellations(port))[0] != calls[1] and time.monotonic() < deadline:
            time.sleep(0.05)
        begun, cancelled = cancellations(port)  # a call may be cancelled before it begins
        assert begun == cancelled
        assert begun > 0


def cancellations(port: int) -> tuple[int, int]:
    """Return how many calls have begun, and how many of them were cancelled."""
    import grpc
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        counts = stub.ModelInfer(service_pb2.ModelInferRequest(model_name="count_cancelled"))
        return int(counts.model_version), int(counts.model_name)


def test_tls(tmp_path):
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    identity = authority.issue_cert("localhost")
    identity.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    with grpc_peer(certificate=str(tmp_path / "server.pem")) as port:
        ran = outcomes(port, unary("echo", bytes(300_000)), tls=Tls(str(tmp_path / "ca.pem")), host="localhost")
        assert ran.outcomes == OK, ran.errors
        with pytest.raises(ConnectionError, match="certificate"):
            outcomes(port, tls=Tls(), host="localhost")
