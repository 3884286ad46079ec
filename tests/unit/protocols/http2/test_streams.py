"""Streams: requests and answers, flow control, and faults that end one stream. `h2` is a client, too."""

import h2.config
import h2.connection
import h2.events
import pytest

from conch.protocols.http2.frames import PREFACE, ErrorCode
from tests.unit.protocols.http2.peers import (
    CONTINUATION,
    DATA,
    HEAD,
    HEADERS,
    NO_SETTINGS,
    PRIORITY,
    REQUEST,
    RST_STREAM,
    TRAILERS,
    WINDOW_UPDATE,
    Client,
    Echo,
    Server,
    frame,
    frames,
    number,
    setting,
)


class Official:
    """The `h2` library as a client, and the frames of both passed between them."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding=None))
        self.h2.initiate_connection()
        self.events: list[h2.events.Event] = []
        self.carry()

    def carry(self) -> None:
        for _ in range(1000):
            out = self.h2.data_to_send()
            back = self.server.take()
            if not out and not back:
                return
            if out:
                self.server.session.receive(out)
            if back:
                self.events += self.h2.receive_data(back)

    def of(self, kind: type, stream: int) -> list:
        return [event for event in self.events if isinstance(event, kind) and event.stream_id == stream]

    def ask(self, stream: int, body: bytes) -> None:
        self.h2.send_headers(stream, REQUEST)
        while body:
            size = min(len(body), self.h2.local_flow_control_window(stream), self.h2.max_outbound_frame_size)
            assert size, "the server keeps its window closed"
            self.h2.send_data(stream, body[:size])
            body = body[size:]
            self.carry()
        self.h2.end_stream(stream)
        self.carry()

    def answer(self, stream: int) -> bytes:
        """Receive an answer, opening windows as it is read."""
        body = b""
        while True:
            ended = bool(self.of(h2.events.StreamEnded, stream))
            pieces = self.of(h2.events.DataReceived, stream)
            self.events = [event for event in self.events if event not in pieces]
            for piece in pieces:
                body += piece.data
                self.h2.acknowledge_received_data(piece.flow_controlled_length, stream)
            if ended:
                return body
            assert pieces, "nothing more comes"
            self.carry()


@pytest.mark.parametrize("size", [0, 1, 16_384, 65_535, 65_536, 300_000, 3_000_000])
def test_bodies_of_any_size_go_there_and_back(size):
    official = Official(Server(Echo, stream_window=100_000, connection_window=150_000, frame_bytes=20_000))
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    for stream in (1, 3):
        official.ask(stream, body)
        assert official.answer(stream) == body
        (head,) = official.of(h2.events.ResponseReceived, stream)
        assert head.headers == [(b":status", b"200"), (b"content-type", b"text/plain")]
        (trailers,) = official.of(h2.events.TrailersReceived, stream)
        assert trailers.headers == [(b"grpc-status", b"0")]
    assert official.server.session.streams == 0


class Big(Echo):
    def data(self, data, ended) -> bool:
        self.stream.answer(HEAD, [bytes(500_000), memoryview(bytes(500_000))], 1_000_000, TRAILERS)
        return True


def test_large_answers_share_the_window():
    official = Official(Server(Big))
    for stream in (1, 3, 5):
        official.h2.send_headers(stream, REQUEST, end_stream=True)
    official.carry()
    bodies = dict.fromkeys((1, 3, 5), 0)
    while sum(bodies.values()) < 3_000_000:
        pieces = [event for event in official.events if isinstance(event, h2.events.DataReceived)]
        assert pieces, "nothing more comes"
        official.events.clear()
        for piece in pieces:
            bodies[piece.stream_id] += len(piece.data)
            official.h2.acknowledge_received_data(piece.flow_controlled_length, piece.stream_id)
        # None gets far ahead of the others.
        assert max(bodies.values()) - min(bodies.values()) <= 131_072
        official.carry()
    assert bodies == dict.fromkeys((1, 3, 5), 1_000_000)


def test_a_whole_answer_is_one_write():
    client = Client(Server(Echo))
    head, data, trailers = client.send(client.request(1, b"hello"))
    assert (head.kind, data.payload, trailers.kind, trailers.flags & 1) == (HEADERS, b"hello", HEADERS, 1)


def test_equal_heads_are_interpreted_once_as_long_as_they_mean_the_same():
    client = Client(Server(Echo))
    for stream in range(1, 21, 2):
        client.send(client.request(stream, b"x"))
    # The first fills the table, the second is the first of those that are alike.
    assert client.server.interpreted == 2
    other = [*REQUEST, (b"x-tenant", b"a")]
    client.send(client.request(21, b"x", other), client.request(23, b"x"), client.request(25, b"x", other))
    assert [dict(call.head.fields) for call in client.server.calls[-3:]] == [
        {b"x-tenant": b"a"},
        {},
        {b"x-tenant": b"a"},
    ]


def test_an_answer_before_the_end_of_the_request_resets_the_stream():
    client = Client(Server())
    client.send(frame(HEADERS, 1, client.encoder.encode(REQUEST), 4))
    client.server.calls[0].stream.answer_head(HEAD)
    head, reset = frames(client.server.take())
    assert (head.flags & 1, reset.kind, reset.number) == (1, RST_STREAM, ErrorCode.NO_ERROR)
    # What is on its way is not a fault.
    assert client.send(frame(DATA, 1, b"late"), frame(DATA, 1, b"later", 1)) == []


def test_trailers_of_a_request_end_it():
    client = Client(Server(Echo))
    client.send(
        frame(HEADERS, 1, client.encoder.encode(REQUEST), 4),
        frame(DATA, 1, b"x"),
        frame(HEADERS, 1, client.encoder.encode([(b"x-sum", b"1")]), 5),
    )
    assert client.server.calls[0].ended


def test_padding_is_removed_and_counts_in_the_windows():
    client = Client(Server(Echo, stream_window=1000, connection_window=70_000))
    block = client.encoder.encode(REQUEST)
    client.send(frame(HEADERS, 1, bytes((3,)) + bytes(5) + block + b"\0\0\0", 0x2C))
    answers = client.send(4 * frame(DATA, 1, bytes((200,)) + b"ab" + bytes(200), 0x8))
    assert client.server.calls[0].body == 4 * b"ab"
    assert sum(answer.number for answer in answers if answer.kind == WINDOW_UPDATE and answer.stream == 1) >= 600
    answers = client.send(frame(DATA, 1, bytes((9,)) + bytes(9), 0x9))
    assert [answer.payload for answer in answers if answer.kind == DATA] == [4 * b"ab"]


def test_a_block_may_come_in_several_frames():
    client = Client(Server(Echo))
    block = client.encoder.encode(REQUEST)
    client.send(
        frame(HEADERS, 1, block[:3], 0), frame(CONTINUATION, 1, block[3:5]), frame(CONTINUATION, 1, block[5:], 4)
    )
    assert client.server.calls[0].head.path == b"/a"


def test_frames_may_come_byte_by_byte():
    server = Server(Echo)
    client = Client(server, greet=False)
    sent = PREFACE + NO_SETTINGS + client.request(1, b"abc") + frame(99, 1, b"unknown") + client.request(3, b"def")
    for octet in sent:
        server.session.receive(bytes((octet,)))
    assert [call.body for call in server.calls] == [b"abc", b"def"]


def test_a_client_with_a_small_window_gets_no_more_than_it_allows():
    client = Client(Server(Echo))
    client.send(setting(4, 10))
    assert [f.payload for f in client.send(client.request(1, b"a" * 25)) if f.kind == DATA] == [b"a" * 10]
    assert [f.payload for f in client.send(frame(WINDOW_UPDATE, 1, number(14))) if f.kind == DATA] == [b"a" * 14]
    rest = client.send(setting(4, 20))
    assert [(f.kind, f.payload) for f in rest if f.kind in (DATA, HEADERS)] == [(DATA, b"a"), (HEADERS, TRAILERS)]


def test_a_window_may_become_negative():
    client = Client(Server(Echo))
    client.send(client.request(1, b"a" * 65_535 + b"b"))
    client.send(setting(4, 0), frame(WINDOW_UPDATE, 0, number(10)))
    assert client.send(frame(WINDOW_UPDATE, 1, number(65_535))) == []
    assert client.send(frame(WINDOW_UPDATE, 1, number(1)))[0].payload == b"b"


def test_windows_open_only_for_consumed_data():
    client = Client(Server(stream_window=1000, connection_window=100_000))
    client.send(frame(HEADERS, 1, client.encoder.encode(REQUEST), 4))
    call = client.server.calls[0]
    call.takes = False
    assert client.send(frame(DATA, 1, bytes(1000))) == []
    call.stream.consumed(1000)
    (update,) = frames(client.server.take())
    assert (update.kind, update.stream, update.number) == (WINDOW_UPDATE, 1, 1000)
    (reset,) = client.send(frame(DATA, 1, bytes(1000)), frame(DATA, 1, b"x"))
    assert (reset.kind, reset.number) == (RST_STREAM, ErrorCode.FLOW_CONTROL_ERROR)
    assert call.gone


def test_a_client_that_does_not_read_answers_gets_no_window():
    client = Client(Server(Echo, connection_window=70_000, held_bytes=30_000))
    client.send(setting(4, 0))
    sent = [client.send(client.request(stream, bytes(15_000))) for stream in (1, 3, 5, 7)]
    assert not any(f.kind == WINDOW_UPDATE for answers in sent for f in answers)
    answers = client.send(setting(4, 2**20))
    assert [(f.stream, f.number) for f in answers if f.kind == WINDOW_UPDATE] == [(0, 60_000)]
    assert sum(len(f.payload) for f in answers if f.kind == DATA) == 60_000


def test_streams_that_end_give_the_connection_its_window_back():
    client = Client(Server(stream_window=60_000, connection_window=66_000))
    for stream in range(1, 401, 2):
        client.send(frame(HEADERS, stream, client.encoder.encode(REQUEST), 4))
        client.server.calls[-1].takes = False
        client.send(frame(DATA, stream, bytes(30_000)), frame(RST_STREAM, stream, number(8)))
    assert not client.server.closed


def test_sending_pauses_while_a_client_does_not_keep_up():
    client = Client(Server(Echo))
    client.send(frame(WINDOW_UPDATE, 0, number(2**30)), setting(4, 2**30))
    client.server.writable = False
    client.send(client.request(1, b"x"))
    call = client.server.calls[0]
    assert call.stream.closed  # small, and bounded by the number of streams
    client.send(frame(HEADERS, 3, client.encoder.encode(REQUEST), 4))
    stream = client.server.calls[1].stream
    stream.begin(HEAD)
    client.server.take()
    stream.write([b"a" * 10], 10)
    assert not stream.flushed
    assert client.server.take() == b""
    client.server.writable = True
    client.server.session.resume()
    assert frames(client.server.take())[0].payload == b"a" * 10
    assert client.server.calls[1].drains == 1


@pytest.mark.parametrize(
    "fields",
    [
        REQUEST[1:],
        REQUEST[:2],
        [*REQUEST, REQUEST[0]],
        [*REQUEST, (b":status", b"200")],
        [REQUEST[0], (b"a", b"b"), *REQUEST[1:]],
        [*REQUEST, (b"Upper", b"x")],
        [*REQUEST, (b"connection", b"close")],
        [*REQUEST, (b"te", b"gzip")],
        [*REQUEST, (b"a", b"b\r\nc: d")],
        [*REQUEST, (b"", b"b")],
    ],
)
def test_a_malformed_request_ends_its_stream_alone(fields):
    client = Client(Server(Echo))
    (reset,) = client.send(client.request(1, fields=fields))
    assert (reset.kind, reset.stream, reset.number) == (RST_STREAM, 1, ErrorCode.PROTOCOL_ERROR)
    assert len(client.send(client.request(3, b"fine"))) == 3


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(WINDOW_UPDATE, 1, number(0)), ErrorCode.PROTOCOL_ERROR),
        (frame(WINDOW_UPDATE, 1, number(2**31 - 1)), ErrorCode.FLOW_CONTROL_ERROR),
        (frame(PRIORITY, 1, bytes(4)), ErrorCode.FRAME_SIZE_ERROR),
        (frame(HEADERS, 1, b"", 4), ErrorCode.PROTOCOL_ERROR),
        (frame(DATA, 1, b"", 1) + frame(DATA, 1, b"more"), ErrorCode.STREAM_CLOSED),
        (frame(DATA, 1, b"", 1) + frame(HEADERS, 1, b"", 5), ErrorCode.STREAM_CLOSED),
    ],
)
def test_a_fault_within_a_stream_ends_it_alone(sent, code):
    client = Client(Server())
    client.send(frame(HEADERS, 1, client.encoder.encode(REQUEST), 4))
    (reset,) = client.send(sent)
    assert (reset.kind, reset.stream, reset.number) == (RST_STREAM, 1, code)
    assert client.server.calls[0].gone
    client.send(client.request(3, b"fine"))
    assert client.server.calls[1].body == b"fine"


def test_more_streams_than_allowed_are_refused():
    client = Client(Server(streams=2))
    (reset,) = client.send(*(client.request(stream) for stream in (1, 3, 5)))
    assert (reset.stream, reset.number) == (5, ErrorCode.REFUSED_STREAM)
    assert len(client.server.calls) == 2
