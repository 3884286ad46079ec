"""Arbitrary bytes from the server: no exception, no endless loop, and every request ends when the connection does."""

import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conch.measure.bench.generator import Endpoint, PreparedRequest, Transport
from conch.measure.bench.load.connection import (
    OPEN,
    EncodedRequest,
    LoadConnection,
    LoadOwner,
    LoadRequest,
    LoadUser,
    Wire,
)
from conch.measure.bench.load.grpc.connection import GrpcConnection, grpc_fields
from conch.measure.bench.load.grpc.messages import StreamResponse, encode_grpc
from conch.protocols.http2 import frames
from tests.measure.bench.load.grpc_plans import streamed, unary

BLOCKS = [
    b"\x88\x5f\x10application/grpc",
    b"\0\x0bgrpc-status\x010",
    b"\x40\x01a\x01b",
    b"\xbe",
    b"\x20",
    b"\xff\xff\xff",
]
MESSAGES = [b"\0\0\0\0\x03abc", b"\0\0\0\0\0", b"\0\xff\xff\xff\xff", b"\1\0\0\0\0", b"\0\0\0\0\x02\x12\0", b"\0\0"]


class Ends(LoadOwner):
    """Counts how often each request is settled or retried."""

    def __init__(self) -> None:
        self.ended: list[LoadRequest] = []
        self.deferred: list[LoadConnection] = []
        self.handed_over: list[LoadRequest] = []

    def _end(self, request: LoadRequest) -> None:
        if not request.settled:
            request.settled = True
            self.ended.append(request)
            assert request.via is not None
            request.via.in_flight -= 1

    def settle(self, request: LoadRequest, outcome: int, now_ns: int, message: str = "") -> None:
        self._end(request)

    def retry(self, request: LoadRequest, now_ns: int, message: str) -> None:
        self._end(request)

    def responded(self, request: LoadRequest, now_ns: int, tokens: int, characters: int) -> bool:
        request.responses += 1
        if request.responses == 3:
            self._end(request)
        return request.responses < 3

    def retire(self, connection: LoadConnection) -> None:
        pass

    def available(self, connection: LoadConnection) -> None:
        pass

    def lost(self, connection: LoadConnection, message: str) -> None:
        pass

    def watch(self, connection: LoadConnection, writable: bool) -> None:
        pass

    def sent(self, request: LoadRequest, now_ns: int) -> None:
        request.sent_ns = now_ns
        self.handed_over.append(request)

    def defer(self, connection: LoadConnection) -> None:
        raise AssertionError

    def defer_send(self, connection: LoadConnection) -> None:
        self.deferred.append(connection)


def frame_of(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return frames.frame_head(len(payload), kind, flags, stream) + payload


PAYLOADS = st.one_of(
    st.sampled_from([*BLOCKS, *MESSAGES]),
    st.binary(max_size=40),
    st.lists(st.sampled_from(MESSAGES), max_size=3).map(b"".join),
)
FRAMES = st.builds(
    frame_of,
    st.one_of(st.sampled_from([0, 0, 1, 1, 9, 3, 4, 7, 8]), st.integers(0, 12)),
    st.sampled_from([0, 1, 4, 5, 8, 0x2D, 0xFF]),
    st.sampled_from([0, 1, 1, 3, 3, 5, 5, 7, 9, 2, 2**31 - 1]),
    PAYLOADS,
)
ENDPOINT = Endpoint("h", 1, Transport.GRPC)
NO_SETTINGS = frame_of(frames.SETTINGS, 0, 0, b"")


@settings(max_examples=300)
@given(
    received=st.one_of(st.lists(FRAMES, max_size=12).map(b"".join), st.binary(max_size=200)),
    settled=st.booleans(),
    piece=st.sampled_from([1, 3, 17, 10_000]),
)
def test_any_bytes(received, settled, piece):
    ours, theirs = socket.socketpair()
    with theirs:
        ours.setblocking(False)
        owner = Ends()
        connection = GrpcConnection(owner, Wire(ours), 10, grpc_fields(ENDPOINT))
        connection.state = OPEN
        connection.opened()
        if settled:
            connection.received(NO_SETTINGS, 1)
        requests = []
        for prepared in (unary("a"), streamed("b"), streamed("c"), unary("d", bytes(70_000))):
            encoded = EncodedRequest(prepared, encode_grpc(prepared), True)
            request = LoadRequest(encoded, LoadUser(0, None), 0, 0)
            request.via = connection
            connection.in_flight += 1
            requests.append(request)
            connection.start(request)
        for at in range(0, len(received), piece):
            if connection.state == OPEN:
                connection.received(received[at : at + piece], 2)
                for callback in owner.deferred:
                    callback.send_deferred()
                owner.deferred.clear()
        if connection.state == OPEN:
            connection.peer_closed()
        if connection.state == OPEN:
            connection.close()
        assert sorted(map(id, owner.ended)) == sorted(map(id, requests))
        assert connection.in_flight == 0


@pytest.mark.parametrize("prepared", [unary("a"), streamed("b")], ids=["unary", "streamed"])
def test_requests_are_sent_when_the_socket_has_them(prepared: PreparedRequest) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.setblocking(False)
        owner = Ends()
        connection = GrpcConnection(owner, Wire(ours), 10, grpc_fields(ENDPOINT))
        connection.state = OPEN
        connection.opened()
        connection.send_deferred()
        theirs.recv(65_536)
        encoded = EncodedRequest(prepared, encode_grpc(prepared), True)
        requests = [LoadRequest(encoded, LoadUser(user, None), 0, 0) for user in range(3)]
        for request in requests:
            connection.start(request)
            request.sent_ns = 0
        with pytest.raises(BlockingIOError):
            theirs.recv(65_536)
        assert not owner.handed_over
        connection.send_deferred()
        assert owner.handed_over == requests
        assert all(request.sent_ns > 0 for request in requests)
        assert theirs.recv(65_536)
        connection.close()


@given(st.binary(max_size=80))
def test_any_message_of_a_stream(data):
    StreamResponse().read(b"xy" + data + b"z", 2, 2 + len(data))


@pytest.mark.parametrize("model", ["text", "", "x" * 300])
def test_messages_are_read_as_protobuf_reads_them(model):
    from tritonclient.grpc import service_pb2

    message = service_pb2.ModelStreamInferResponse()
    answer = message.infer_response
    answer.model_name, answer.id = model, "17"
    answer.parameters["other"].string_param = "triton_final_response"
    answer.parameters["triton_final_response"].bool_param = True
    answer.outputs.add(name="OUT", datatype="BYTES", shape=[1])
    answer.raw_output_contents.append(b"\x05\0\0\0hello")
    data = message.SerializeToString()
    response = StreamResponse()
    assert response.read(data, 0, len(data))
    assert (response.id, response.final, response.outputs, response.content_bytes) == (b"17", 1, 1, 9)
    assert data[response.infer_start : response.infer_end] == answer.SerializeToString()
    answer.parameters["triton_final_response"].bool_param = False
    message.error_message = "ärgerlich"
    data = message.SerializeToString()
    assert response.read(data, 0, len(data))
    assert (response.final, response.error) == (0, "ärgerlich")
    for end in range(1, len(data)):
        response.read(data, 0, end)
