"""What a connection does with what a client sends: right, wrong and too much."""

import struct

import h2.config
import h2.connection
import h2.events
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conch.frontends.http2.frames import PREFACE, ErrorCode
from tests.unit.frontends.http2.peers import (
    CONTINUATION,
    DATA,
    GOAWAY,
    HEAD,
    HEADERS,
    NO_SETTINGS,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    REQUEST,
    RST_STREAM,
    SETTINGS,
    TRAILERS,
    WINDOW_UPDATE,
    Client,
    Echo,
    Recorder,
    Server,
    frame,
    frames,
)


def number(value: int) -> bytes:
    return struct.pack(">I", value)


def setting(key: int, value: int) -> bytes:
    return frame(SETTINGS, payload=struct.pack(">HI", key, value))


# ---- a client of another make


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


# ---- what is answered


def test_the_limits_are_announced_at_once():
    (settings, window) = frames(Server(streams=7, stream_window=70_000, connection_window=80_000).take())
    assert settings.kind == SETTINGS
    values = dict(struct.iter_unpack(">HI", settings.payload))
    assert values == {3: 7, 4: 70_000, 5: 2**20, 6: 16_384}
    assert (window.kind, window.stream, window.number) == (WINDOW_UPDATE, 0, 80_000 - 65_535)


def test_settings_and_pings_are_answered():
    client = Client(Server(), greet=False)
    answers = client.send(PREFACE, NO_SETTINGS, frame(PING, payload=b"12345678"))
    assert [(answer.kind, answer.flags, answer.payload) for answer in answers[2:]] == [
        (SETTINGS, 1, b""),
        (PING, 1, b"12345678"),
    ]


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


def test_an_answer_before_the_end_of_the_request_asks_to_stop_sending():
    client = Client(Server())
    client.send(frame(HEADERS, 1, client.encoder.encode(REQUEST), 4))
    client.server.calls[0].stream.answer_head(HEAD)
    head, reset = frames(client.server.take())
    assert (head.flags & 1, reset.kind, reset.number) == (1, RST_STREAM, ErrorCode.NO_ERROR)
    # What is under way is no fault.
    assert client.send(frame(DATA, 1, b"late"), frame(DATA, 1, b"later", 1)) == []


def test_trailers_of_a_request_end_it():
    client = Client(Server(Echo))
    client.send(
        frame(HEADERS, 1, client.encoder.encode(REQUEST), 4),
        frame(DATA, 1, b"x"),
        frame(HEADERS, 1, client.encoder.encode([(b"x-sum", b"1")]), 5),
    )
    assert client.server.calls[0].ended


def test_padding_is_taken_off_and_counts_in_the_windows():
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


# ---- windows


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


def test_what_is_not_taken_is_not_asked_for_again():
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


def test_a_client_that_takes_no_answers_is_not_asked_for_more():
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


def test_a_client_that_does_not_keep_up_is_sent_nothing_more():
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


# ---- faults of a stream


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


# ---- faults of a connection


def goaway(client: Client, *sent: bytes) -> tuple[int, bytes]:
    *_, last = client.send(*sent)
    assert last.kind == GOAWAY
    assert client.server.closed
    assert all(call.gone for call in client.server.calls if not call.stream.closed or call.gone)
    assert client.send(client.request(1001, b"x")) == []
    return last.number, last.payload[8:]


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(DATA, 0, b"x"), ErrorCode.PROTOCOL_ERROR),
        (frame(DATA, 7, b"x"), ErrorCode.PROTOCOL_ERROR),
        (frame(DATA, 1, b"", 8), ErrorCode.FRAME_SIZE_ERROR),
        (frame(DATA, 1, b"\5abc", 8), ErrorCode.PROTOCOL_ERROR),
        (b"\xff\xff\xff\0\0\0\0\0\1", ErrorCode.FRAME_SIZE_ERROR),
        (b"\x01\0\1\x01\0\0\0\0\1", ErrorCode.FRAME_SIZE_ERROR),
        (frame(HEADERS, 0, b"", 4), ErrorCode.PROTOCOL_ERROR),
        (frame(HEADERS, 4, b"\x82", 4), ErrorCode.PROTOCOL_ERROR),
        (frame(HEADERS, 5, b"\x09", 0xC), ErrorCode.PROTOCOL_ERROR),
        (frame(HEADERS, 5, b"\xff\xff\xff\xff\xff\xff", 4), ErrorCode.COMPRESSION_ERROR),
        (frame(HEADERS, 5, b"\x80", 4), ErrorCode.COMPRESSION_ERROR),
        (frame(HEADERS, 5, b"\x40", 4), ErrorCode.COMPRESSION_ERROR),
        (frame(HEADERS, 5, b"\x3f\xff\xff\x7f", 4), ErrorCode.COMPRESSION_ERROR),
        (frame(HEADERS, 5, b"\x82") + frame(DATA, 1, b"x"), ErrorCode.PROTOCOL_ERROR),
        (frame(HEADERS, 5, b"\x82") + frame(CONTINUATION, 1, b"\x82", 4), ErrorCode.PROTOCOL_ERROR),
        (frame(CONTINUATION, 1, b"\x82", 4), ErrorCode.PROTOCOL_ERROR),
        (frame(PRIORITY, 0, bytes(5)), ErrorCode.PROTOCOL_ERROR),
        (frame(RST_STREAM, 0, number(8)), ErrorCode.PROTOCOL_ERROR),
        (frame(RST_STREAM, 9, number(8)), ErrorCode.PROTOCOL_ERROR),
        (frame(RST_STREAM, 1, b"123"), ErrorCode.FRAME_SIZE_ERROR),
        (frame(SETTINGS, 1), ErrorCode.PROTOCOL_ERROR),
        (frame(SETTINGS, 0, b"12345"), ErrorCode.FRAME_SIZE_ERROR),
        (frame(SETTINGS, 0, b"123456", 1), ErrorCode.FRAME_SIZE_ERROR),
        (setting(2, 2), ErrorCode.PROTOCOL_ERROR),
        (setting(4, 2**31), ErrorCode.FLOW_CONTROL_ERROR),
        (frame(WINDOW_UPDATE, 1, number(2**31 - 1 - 65_535)) + setting(4, 65_536), ErrorCode.FLOW_CONTROL_ERROR),
        (setting(5, 16_383), ErrorCode.PROTOCOL_ERROR),
        (setting(5, 2**24), ErrorCode.PROTOCOL_ERROR),
        (frame(PUSH_PROMISE, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (frame(PING, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (frame(PING, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
        (frame(GOAWAY, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (frame(GOAWAY, 0, bytes(7)), ErrorCode.PROTOCOL_ERROR),
        (frame(WINDOW_UPDATE, 0, number(0)), ErrorCode.PROTOCOL_ERROR),
        (frame(WINDOW_UPDATE, 0, number(2**31 - 1)), ErrorCode.FLOW_CONTROL_ERROR),
        (frame(WINDOW_UPDATE, 9, number(1)), ErrorCode.PROTOCOL_ERROR),
        (frame(WINDOW_UPDATE, 0, b"1"), ErrorCode.FRAME_SIZE_ERROR),
    ],
)
def test_a_fault_of_the_connection_ends_it(sent, code):
    client = Client(Server())
    client.send(frame(HEADERS, 1, client.encoder.encode(REQUEST), 4))
    assert goaway(client, sent)[0] == code
    assert client.server.calls[0].gone


def test_a_stream_does_not_begin_twice():
    client = Client(Server(Echo))
    client.send(client.request(1, b"x"))
    assert goaway(client, client.request(1, b"x"))[0] == ErrorCode.STREAM_CLOSED


@pytest.mark.parametrize(
    "sent",
    [b"GET / HTTP/1.1\r\n\r\n", b"P", PREFACE + frame(PING, 0, bytes(8)), PREFACE + frame(HEADERS, 1, b"\x82", 5)],
)
def test_whoever_does_not_speak_http2_is_told_so(sent):
    server = Server()
    client = Client(server, greet=False)
    server.take()
    assert [f.number for f in client.send(sent)] == ([] if sent == b"P" else [ErrorCode.PROTOCOL_ERROR])
    server.sweep_after(11)
    assert server.closed


# ---- too much


def test_streams_given_up_in_rapid_succession():
    client = Client(Server(resets=50, resets_per_s=10))
    for stream in range(1, 101, 2):
        assert client.send(client.request(stream), frame(RST_STREAM, stream, number(8))) == []
    client.server.now += 1
    for stream in range(101, 121, 2):
        assert client.send(client.request(stream), frame(RST_STREAM, stream, number(8))) == []
    assert goaway(client, client.request(121), frame(RST_STREAM, 121, number(8)))[0] == ErrorCode.ENHANCE_YOUR_CALM
    assert all(call.gone for call in client.server.calls)


def test_streams_spoilt_in_rapid_succession():
    client = Client(Server(resets=50, resets_per_s=0))
    sent = [client.request(stream) + frame(WINDOW_UPDATE, stream, number(0)) for stream in range(1, 103, 2)]
    assert goaway(client, *sent)[0] == ErrorCode.ENHANCE_YOUR_CALM


@pytest.mark.parametrize(
    "trifle",
    [NO_SETTINGS, frame(PRIORITY, 1, bytes(5)), frame(DATA, 1), frame(42, 1, b"x"), frame(PING, 0, bytes(8), 1)],
)
def test_frames_that_do_nothing(trifle):
    client = Client(Server(noise_frames=50, noise_frames_per_s=1))
    client.send(frame(HEADERS, 1, client.encoder.encode(REQUEST), 4))
    assert goaway(client, 60 * trifle)[0] == ErrorCode.ENHANCE_YOUR_CALM


def test_requests_that_cannot_be_served():
    class Refusing(Recorder):
        def __init__(self, head, stream) -> None:
            super().__init__(head, stream)
            stream.answer_head(TRAILERS)

    for served, flags in ((Refusing, 4), (Recorder, 5)):
        client = Client(Server(served, noise_frames=50, noise_frames_per_s=0))
        sent = [frame(HEADERS, i, client.encoder.encode(REQUEST), flags) for i in range(1, 25, 2)]
        assert goaway(client, *sent)[0] == ErrorCode.ENHANCE_YOUR_CALM


def test_windows_that_are_opened_for_nothing():
    client = Client(Server(Echo, noise_frames=50, noise_frames_per_s=0))
    for stream in range(1, 201, 2):  # as many as answers is what clients send
        client.send(
            client.request(stream, b"x"), frame(WINDOW_UPDATE, 0, number(1)), frame(WINDOW_UPDATE, 0, number(1))
        )
        assert not client.server.closed
    assert goaway(client, *[frame(WINDOW_UPDATE, 0, number(1))] * 500)[0] == ErrorCode.ENHANCE_YOUR_CALM


def test_windows_that_let_out_a_byte_at_a_time():
    client = Client(Server(Echo, noise_frames=50, noise_frames_per_s=0))
    client.send(setting(4, 0), client.request(1, b"x" * 1000))
    sent = [frame(WINDOW_UPDATE, 1, number(1))] * 100
    assert goaway(client, *sent)[0] == ErrorCode.ENHANCE_YOUR_CALM


def test_data_by_the_byte():
    client = Client(Server(small_frames=50, small_frames_per_s=0))
    client.send(frame(HEADERS, 1, client.encoder.encode(REQUEST), 4))
    assert goaway(client, frame(DATA, 1, b"x") * 51)[0] == ErrorCode.ENHANCE_YOUR_CALM


def test_settings_beyond_all_measure():
    client = Client(Server(noise_frames=50, noise_frames_per_s=0))
    many = frame(SETTINGS, payload=struct.pack(">HI", 99, 1) * 600)
    assert goaway(client, many)[0] == ErrorCode.ENHANCE_YOUR_CALM


def test_endless_header_blocks():
    client = Client(Server())
    assert goaway(client, frame(HEADERS, 1, b"\x82"), 100 * frame(CONTINUATION, 1))[0] == ErrorCode.ENHANCE_YOUR_CALM
    client = Client(Server())
    large = frame(CONTINUATION, 1, bytes(16_384))
    assert goaway(client, frame(HEADERS, 1, b"\x82"), 5 * large)[0] == ErrorCode.ENHANCE_YOUR_CALM


def test_a_small_block_of_many_fields():
    client = Client(Server())
    block = client.encoder.encode([*REQUEST, (b"bomb", b"x" * 3000)])
    client.send(frame(HEADERS, 1, block, 5))
    references = client.encoder.encode([*REQUEST, (b"bomb", b"x" * 3000)])[-1:]
    code, reason = goaway(client, frame(HEADERS, 3, 1000 * references, 5))
    assert (code, reason) == (ErrorCode.ENHANCE_YOUR_CALM, b"header list too large")


def test_pings_that_come_too_often():
    client = Client(Server(ping_interval_s=10, ping_strikes=2, keepalive_idle=True))
    ping = frame(PING, 0, bytes(8))
    for _ in range(3):
        assert len(client.send(ping)) == 1
    code, reason = goaway(client, ping)
    assert (code, reason) == (ErrorCode.ENHANCE_YOUR_CALM, b"too_many_pings")


def test_pings_are_forgiven_while_something_is_sent():
    client = Client(Server(Echo, ping_strikes=1))
    for stream in range(1, 41, 2):
        answers = client.send(client.request(stream, b"x"), frame(PING, 0, bytes(8)), frame(PING, 0, bytes(8)))
        assert [answer.kind for answer in answers] == [HEADERS, DATA, HEADERS, PING, PING]


def test_pings_at_their_time_are_welcome():
    client = Client(Server(ping_interval_s=10, ping_strikes=1, keepalive_idle=True))
    for _ in range(10):
        assert len(client.send(frame(PING, 0, bytes(8)))) == 1
        client.server.now += 11


# ---- time


def test_a_silent_client_is_asked_and_then_given_up():
    client = Client(Server(keepalive_s=10, keepalive_timeout_s=5))
    client.server.sweep_after(100)
    assert client.server.take() == b""  # without streams nobody asks
    client.send(frame(HEADERS, 1, client.encoder.encode(REQUEST), 4))
    client.server.sweep_after(11)
    (ping,) = frames(client.server.take())
    client.send(frame(PING, 0, ping.payload, 1))
    client.server.sweep_after(6)
    assert not client.server.closed
    client.server.sweep_after(11)
    client.server.sweep_after(6)
    assert client.server.closed
    assert client.server.calls[0].gone


def test_pings_of_the_server_are_counted():
    client = Client(Server(keepalive_s=10, pings_without_data=2, keepalive_idle=True))
    asked = 0
    for _ in range(5):
        client.server.sweep_after(11)
        for ping in frames(client.server.take()):
            asked += 1
            client.send(frame(PING, 0, ping.payload, 1))
    assert asked == 2


def test_an_old_connection_takes_what_was_under_way_and_then_no_more():
    client = Client(Server(Echo, age_s=10))
    client.server.sweep_after(12)
    goodbye, ping = frames(client.server.take())
    assert (goodbye.kind, goodbye.payload[:4], goodbye.number) == (GOAWAY, number(2**31 - 1), ErrorCode.NO_ERROR)
    assert len(client.send(client.request(1, b"x"))) == 3
    client.send(frame(HEADERS, 3, client.encoder.encode(REQUEST), 4))
    (last,) = client.send(frame(PING, 0, ping.payload, 1))
    assert (last.kind, last.payload[:4]) == (GOAWAY, number(3))
    (refused,) = client.send(
        client.request(5, b"late"), frame(WINDOW_UPDATE, 5, number(1)), frame(RST_STREAM, 5, number(8))
    )
    assert (refused.kind, refused.number) == (RST_STREAM, ErrorCode.REFUSED_STREAM)
    assert not client.server.closed
    client.send(frame(DATA, 3, b"", 1))
    assert client.server.closed


def test_an_old_connection_ends_after_its_grace():
    client = Client(Server(age_s=10, age_grace_s=5))
    client.send(client.request(1))
    client.server.sweep_after(12)
    client.server.sweep_after(6)
    assert client.server.closed
    assert client.server.calls[0].gone


def test_a_request_that_does_not_come_is_refused():
    client = Client(Server(receive_grace_s=10, receive_bytes_per_s=100))
    client.send(frame(HEADERS, 1, client.encoder.encode(REQUEST), 4), frame(DATA, 1, bytes(1000)))
    client.server.sweep_after(19)
    assert not client.server.calls[0].late
    client.server.sweep_after(2)
    assert client.server.calls[0].late


def test_an_answer_that_is_not_read_is_given_up():
    client = Client(Server(Echo, stalled_write_s=10))
    client.send(setting(4, 5))
    client.send(client.request(1, b"0123456789"))
    for _ in range(4):
        client.server.sweep_after(6)
        if frames(client.server.take()):
            break
    assert client.server.calls[0].gone
    assert client.server.session.streams == 0


def test_a_client_that_reads_slowly_is_not_given_up():
    client = Client(Server(Echo, stalled_write_s=10))
    client.send(setting(4, 1))
    client.send(client.request(1, b"0123456789"))
    for _ in range(9):
        client.server.sweep_after(6)
        client.send(frame(WINDOW_UPDATE, 1, number(1)))
    assert not client.server.calls[0].gone
    assert client.server.calls[0].stream.closed


def test_a_client_that_says_goodbye_gets_what_it_asked_for():
    client = Client(Server())
    client.send(client.request(1))
    client.send(frame(GOAWAY, 0, bytes(8)))
    assert not client.server.closed
    client.server.calls[0].stream.answer(HEAD, [b"x"], 1, TRAILERS)
    assert client.server.closed


def test_a_lost_connection_is_told_to_all():
    client = Client(Server())
    client.send(client.request(1), client.request(3))
    client.server.session.disconnected()
    assert [call.gone for call in client.server.calls] == [True, True]
    client.server.calls[0].stream.answer(HEAD, [b"x"], 1, TRAILERS)
    assert client.server.take() == b""


def test_a_fault_of_the_server_ends_the_connection_with_a_line_in_the_log(caplog):
    server = Server()
    server.accept = None
    client = Client(server)
    assert goaway(client, client.request(1))[0] == ErrorCode.INTERNAL_ERROR
    assert "failed unexpectedly" in caplog.text


# ---- anything at all


KINDS = st.sampled_from([*range(10), 99])
STREAMS = st.sampled_from([0, 1, 3, 5, 2, 2**31 - 1])
PAYLOADS = st.one_of(st.binary(max_size=40), st.sampled_from([number(1), number(2**31 - 1), bytes(5), bytes(8)]))


@given(st.lists(st.tuples(KINDS, STREAMS, PAYLOADS, st.integers(0, 255), st.booleans()), max_size=30))
def test_any_frames_are_served_or_end_in_order(sent):
    server = Server(Echo, streams=3)
    client = Client(server)
    goaways: list[int] = []
    for kind, stream, payload, flags, valid in sent:
        if kind == HEADERS and valid:
            payload, flags = client.encoder.encode(REQUEST), flags & 1 | 4
        goaways += [
            answer.number for answer in client.send(frame(kind, stream, payload, flags)) if answer.kind == GOAWAY
        ]
        assert set(goaways) <= set(ErrorCode)
        # A client's GOAWAY is answered with one that is no error; open streams are served before the connection closes.
        assert server.closed or set(goaways) <= {ErrorCode.NO_ERROR}
        if server.closed:
            assert goaways
            break
        assert server.session.streams <= 3
        server.sweep_after(0.5)
    assert all(call.gone or call.stream.closed for call in server.calls) or not server.closed
