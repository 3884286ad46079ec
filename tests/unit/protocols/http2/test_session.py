"""A connection: SETTINGS, PING, GOAWAY, faults that end it, timeouts, and any frames at all."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conch.protocols.http2.frames import PREFACE, ErrorCode
from tests.unit.protocols.http2.peers import (
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
    Server,
    frame,
    frames,
    goaway,
    number,
    setting,
)


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
def test_other_protocols_end_with_goaway(sent):
    server = Server()
    client = Client(server, greet=False)
    server.take()
    assert [f.number for f in client.send(sent)] == ([] if sent == b"P" else [ErrorCode.PROTOCOL_ERROR])
    server.sweep_after(11)
    assert server.closed


def test_a_silent_client_gets_a_ping_and_is_then_disconnected():
    client = Client(Server(keepalive_s=10, keepalive_timeout_s=5))
    client.server.sweep_after(100)
    assert client.server.take() == b""  # no keepalive ping without streams
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


def test_an_old_connection_drains_and_then_refuses_streams():
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


def test_an_incomplete_request_times_out():
    client = Client(Server(receive_grace_s=10, receive_bytes_per_s=100))
    client.send(frame(HEADERS, 1, client.encoder.encode(REQUEST), 4), frame(DATA, 1, bytes(1000)))
    client.server.sweep_after(19)
    assert not client.server.calls[0].late
    client.server.sweep_after(2)
    assert client.server.calls[0].late


def test_a_stream_whose_answer_is_not_read_is_reset():
    client = Client(Server(Echo, stalled_write_s=10))
    client.send(setting(4, 5))
    client.send(client.request(1, b"0123456789"))
    for _ in range(4):
        client.server.sweep_after(6)
        if frames(client.server.take()):
            break
    assert client.server.calls[0].gone
    assert client.server.session.streams == 0


def test_answers_that_are_not_read_are_dropped_sooner_above_the_buffer():
    """The oldest go first, until the rest fits; a stream that gets window stays."""
    client = Client(Server(Echo, stalled_write_s=300, stalled_full_s=10, held_bytes=60))
    client.send(setting(4, 1))
    for stream in (1, 3, 5, 7):
        client.send(client.request(stream, b"0123456789"))
    calls = client.server.calls
    for _ in range(4):
        client.server.sweep_after(6)
        client.send(frame(WINDOW_UPDATE, 1, number(1)))
    assert [call.gone for call in calls] == [False, True, False, False]
    assert client.server.session.streams == 3


def test_a_slow_client_is_not_reset():
    client = Client(Server(Echo, stalled_write_s=10))
    client.send(setting(4, 1))
    client.send(client.request(1, b"0123456789"))
    for _ in range(9):
        client.server.sweep_after(6)
        client.send(frame(WINDOW_UPDATE, 1, number(1)))
    assert not client.server.calls[0].gone
    assert client.server.calls[0].stream.closed


def test_a_client_that_sends_goaway_gets_its_answers():
    client = Client(Server())
    client.send(client.request(1))
    client.send(frame(GOAWAY, 0, bytes(8)))
    assert not client.server.closed
    client.server.calls[0].stream.answer(HEAD, [b"x"], 1, TRAILERS)
    assert client.server.closed


def test_a_lost_connection_aborts_all_streams():
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
        # A client's GOAWAY is answered with NO_ERROR; open streams are served before the connection closes.
        assert server.closed or set(goaways) <= {ErrorCode.NO_ERROR}
        if server.closed:
            assert goaways
            break
        assert server.session.streams <= 3
        server.sweep_after(0.5)
    assert all(call.gone or call.stream.closed for call in server.calls) or not server.closed
