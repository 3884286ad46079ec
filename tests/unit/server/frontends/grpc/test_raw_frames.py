"""The gRPC port, byte by byte: what clients send that no library sends, and what they get for it."""

import asyncio
import gzip
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from hpack import Decoder, Encoder
from tritonclient.grpc import service_pb2

from conch.base.errors import BackendError
from conch.domain.tensor import Tensor
from conch.protocols.http2.frames import PREFACE
from tests.unit.protocols.http2.peers import (
    DATA,
    GOAWAY,
    HEADERS,
    NO_SETTINGS,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Frame,
    frame,
)
from tests.unit.server.frontends.grpc.test_v2_grpc_stream import request

SERVICE = b"/inference.GRPCInferenceService/"
INFER = SERVICE + b"ModelInfer"
OPEN_WINDOWS = frame(SETTINGS, 0, struct.pack(">HI", 4, 2**31 - 1)) + frame(WINDOW_UPDATE, 0, struct.pack(">I", 2**30))


def framed(message: bytes, flag: int = 0) -> bytes:
    return struct.pack(">BI", flag, len(message)) + message


class Wire:
    """A client that writes what it likes and reads frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.encoder = Encoder()
        self.decoder = Decoder()
        self.headers: dict[int, dict[str, str]] = {}  # by stream, trailers included

    def send(self, *data: bytes) -> None:
        self.writer.write(b"".join(data))

    def head(self, stream: int, path: bytes = INFER, flags: int = 4, **fields: str | None) -> bytes:
        values = {":method": "POST", ":scheme": "http", ":path": path.decode(), "content-type": "application/grpc"}
        values |= {name.replace("_", "-").replace("..", ":"): value for name, value in fields.items()}
        block = self.encoder.encode([(name, value) for name, value in values.items() if value is not None])
        return frame(HEADERS, stream, block, flags)

    def call(self, stream: int, message: bytes, **fields: str | None) -> None:
        self.send(self.head(stream, **fields), frame(DATA, stream, framed(message), 1))

    async def frame(self) -> Frame:
        async with asyncio.timeout(60):
            head = await self.reader.readexactly(9)
            got = Frame(
                head[3], head[4], int.from_bytes(head[5:]), await self.reader.readexactly(int.from_bytes(head[:3]))
            )
        if got.kind == HEADERS:
            self.headers.setdefault(got.stream, {}).update(self.decoder.decode(got.payload))
        return got

    async def until(self, kind: int, stream: int = 0) -> Frame:
        while True:
            got = await self.frame()
            if got.kind == kind and (got.stream == stream or not stream):
                return got

    async def status(self, stream: int) -> tuple[int, str]:
        """Read until the stream has ended; its status."""
        while not (await self.until(HEADERS, stream)).flags & 1:
            pass
        fields = self.headers[stream]
        return int(fields.get("grpc-status", -1)), fields.get("grpc-message", "")


@asynccontextmanager
async def connected(port: int, *, greet: bool = True) -> AsyncIterator[Wire]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    wire = Wire(reader, writer)
    if greet:
        wire.send(PREFACE, NO_SETTINGS)
    try:
        yield wire
    finally:
        writer.close()


@pytest.fixture
async def wire(frontend) -> AsyncIterator[Wire]:
    async with connected(frontend.port) as wire:
        yield wire


def echo_request() -> bytes:
    return request("echo", "r").SerializeToString()


async def served(port: int) -> None:
    """Another client is answered."""
    async with connected(port) as other:
        other.call(1, echo_request())
        assert await other.status(1) == (0, "")


# ---- one call


@pytest.mark.parametrize("coding", ["gzip", "identity"])
async def test_a_message_in_any_pieces(wire, coding):
    message = gzip.compress(echo_request()) if coding == "gzip" else echo_request()
    data = framed(message, coding == "gzip")
    wire.send(wire.head(1, grpc_encoding=coding))
    for octet in data:
        wire.send(frame(DATA, 1, bytes((octet,))))
    wire.send(frame(DATA, 1, b"", 1))
    answer = await wire.until(DATA, 1)
    assert service_pb2.ModelInferResponse.FromString(answer.payload[5:]).id == "r"
    assert await wire.status(1) == (0, "")


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"..method": "GET"}, "405"),
        ({"content_type": "text/html"}, "415"),
        ({"content_type": None}, "415"),
    ],
)
async def test_requests_other_than_grpc_get_an_http_status(wire, fields, status):
    wire.call(1, echo_request(), **fields)
    await wire.status(1)
    assert wire.headers[1][":status"] == status


@pytest.mark.parametrize(
    ("fields", "status", "text"),
    [
        ({"grpc_encoding": "br"}, 12, "grpc-encoding 'br' is not supported"),
        ({"grpc_timeout": "soon"}, 3, "grpc-timeout 'soon' is not a valid timeout, expected e.g. 500m"),
        ({"grpc_timeout": "0n"}, 4, "Deadline Exceeded"),
        ({"x_data_bin": "*"}, 3, "metadata 'x-data-bin' is not base64"),
        ({"x_much": "y" * 20_000}, 8, "exceeds the maximum of 16384"),
    ],
)
async def test_heads_that_say_what_cannot_be(wire, inference, fields, status, text):
    message = request("held").SerializeToString()
    wire.call(1, message, **fields)
    got, words = await wire.status(1)
    assert (got, text in words) == (status, True), words
    if status == 12:
        assert wire.headers[1]["grpc-accept-encoding"] == "identity, deflate, gzip"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "a unary call without a message"),
        (framed(b"")[:-1], "the call ends with an incomplete message"),
        (framed(b"abc")[:-1], "the call ends with an incomplete message"),
        (2 * framed(b""), "data after the message of a unary call"),
        (framed(b"", 7), "expected 0 or 1"),
        (framed(b"x", 1), "without a grpc-encoding"),
    ],
)
async def test_data_that_are_not_one_message(wire, data, text):
    for stream, path in ((1, INFER), (3, SERVICE + b"ServerLive")):
        wire.send(wire.head(stream, path), frame(DATA, stream, data, 1))
        status, words = await wire.status(stream)
        assert (status, text in words) == (3, True), words


async def test_a_second_message_is_refused(wire):
    wire.send(wire.head(1), frame(DATA, 1, framed(echo_request())), frame(DATA, 1, framed(echo_request()), 1))
    assert (await wire.status(1))[0] == 3


async def test_a_stream_that_ends_within_a_message(wire):
    wire.send(wire.head(1, SERVICE + b"ModelStreamInfer"), frame(DATA, 1, framed(echo_request())))
    await wire.until(DATA, 1)
    wire.send(frame(DATA, 1, framed(echo_request())[:-1], 1))
    assert await wire.status(1) == (3, "the call ends with an incomplete message")


async def test_a_text_that_is_not_ascii_arrives_as_it_was(frontend, inference):
    text = "100 % of „ünïcode“\nin\ttwo lines"
    inference.add("broken", lambda pending: pending.finish(BackendError(text)))
    async with grpc.aio.insecure_channel(f"127.0.0.1:{frontend.port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(INFER.decode())(request("broken").SerializeToString())
    assert caught.value.details() == text


async def test_requests_compressed_by_the_official_client(blocking_client, inference):
    array = np.zeros(100_000, np.float32)
    tensor = triton.InferInput("INPUT0", array.shape, "FP32").set_data_from_numpy(array)
    for algorithm in ("gzip", "deflate"):
        result = await asyncio.to_thread(blocking_client.infer, "echo", [tensor], compression_algorithm=algorithm)
        assert (result.as_numpy("OUT_INPUT0") == array).all()


# ---- ends


async def test_a_call_that_is_reset_is_cancelled(wire, inference):
    wire.call(1, request("held").SerializeToString())
    (pending,) = await inference.wait_for(1)
    wire.send(frame(RST_STREAM, 1, struct.pack(">I", 8)))
    async with asyncio.timeout(60):
        await pending.cancelled.wait()


async def test_a_connection_that_is_lost_cancels_its_calls(frontend, inference):
    async with connected(frontend.port) as wire:
        wire.call(1, request("held").SerializeToString())
        wire.send(
            wire.head(3, SERVICE + b"ModelStreamInfer"), frame(DATA, 3, framed(request("held").SerializeToString()))
        )
        pending = await inference.wait_for(2)
        wire.writer.transport.abort()
        async with asyncio.timeout(60):
            for admitted in pending:
                await admitted.cancelled.wait()


async def test_a_deadline_ends_the_call_and_what_works_for_it(wire, inference):
    wire.call(1, request("held").SerializeToString(), grpc_timeout="50m")
    (pending,) = await inference.wait_for(1)
    assert await wire.status(1) == (4, "Deadline Exceeded")
    assert pending.cancelled.is_set()


# ---- rude clients


async def test_garbage_gets_a_reason_and_an_end(frontend):
    async with connected(frontend.port, greet=False) as wire:
        wire.send(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await wire.until(GOAWAY)).payload[8:] == b"expected the HTTP/2 connection preface"
        async with asyncio.timeout(60):
            assert await wire.reader.read() == b""
    await served(frontend.port)


async def test_rapid_resets_end_their_connection_alone(frontend, inference):
    async with connected(frontend.port) as wire, connected(frontend.port) as other:
        other.call(1, request("held").SerializeToString())
        (held,) = await inference.wait_for(1)
        for stream in range(1, 4001, 2):
            wire.call(stream, request("held").SerializeToString())
            wire.send(frame(RST_STREAM, stream, struct.pack(">I", 8)))
        last = await wire.until(GOAWAY)
        assert (last.number, last.payload[8:]) == (11, b"too many stream resets")
        held.answer()
        assert await other.status(1) == (0, "")
    assert all(pending.done for pending in inference.admitted)


async def test_reading_pauses_while_a_client_does_not_read(frontend, inference):
    """A client with open windows that asks and asks, and never reads: answers do not pile up."""
    megabyte = Tensor("OUT", "UINT8", (2**20,), bytes(2**20))
    inference.add("big", lambda pending: pending.answer(megabyte))
    async with connected(frontend.port) as wire:
        wire.send(OPEN_WINDOWS)
        for stream in range(1, 4001, 2):
            wire.call(stream, request("big").SerializeToString())
        await inference.wait_for(1)
        await served(frontend.port)
        await served(frontend.port)
        # What the system takes, what the transport takes ahead, and one read of requests.
        assert len(inference.admitted) < 1000 + 2
        assert (await wire.until(DATA)).stream == 1


async def test_pings_beyond_measure(frontend):
    async with connected(frontend.port) as wire:
        wire.send(20 * frame(PING, 0, bytes(8)))
        last = await wire.until(GOAWAY)
        assert (last.number, last.payload[8:]) == (11, b"too_many_pings")
    await served(frontend.port)
