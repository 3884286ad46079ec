"""Limits for what costs a client little and the server much: resets, noise frames, pings."""

import struct

import pytest

from conch.protocols.connections.traffic import SweepClock
from conch.protocols.http2.frames import ConnectionFault, ErrorCode
from conch.protocols.http2.limits import Http2Limits, PeerResets
from tests.unit.protocols.http2.peers import (
    CONTINUATION,
    DATA,
    HEADERS,
    NO_SETTINGS,
    PING,
    PRIORITY,
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
    goaway,
    number,
    setting,
)


def test_rapid_resets_by_the_client():
    client = Client(Server(resets=50, resets_per_s=10))
    for stream in range(1, 101, 2):
        assert client.send(client.request(stream), frame(RST_STREAM, stream, number(8))) == []
    client.server.clock.now += 1
    for stream in range(101, 121, 2):
        assert client.send(client.request(stream), frame(RST_STREAM, stream, number(8))) == []
    assert goaway(client, client.request(121), frame(RST_STREAM, 121, number(8)))[0] == ErrorCode.ENHANCE_YOUR_CALM
    assert all(call.gone for call in client.server.calls)


def reset_calls(resets: PeerResets, clock: SweepClock, peer: str, count: int) -> bool:
    """Reset calls on a new connection; return whether it was ended."""
    server = Server(peer=peer, by_peer=resets)
    server.clock.now = clock.now
    client = Client(server)
    for stream in range(1, 2 * count + 1, 2):
        client.send(client.request(stream), frame(RST_STREAM, stream, number(8)))
    return server.closed


@pytest.mark.parametrize(
    ("peer", "same", "other"),
    [
        ("192.0.2.1", "192.0.2.1", "192.0.2.2"),
        ("192.0.2.1", "::ffff:192.0.2.1", "::ffff:192.0.2.2"),
        ("2001:db8::1", "2001:db8::ff:2", "2001:db8:0:1::1"),
        ("fe80::1%eth0", "fe80::2%eth0", "::1"),
        ("", "", "::1"),
    ],
)
def test_rapid_resets_over_new_connections(peer: str, same: str, other: str):
    clock, resets = SweepClock(), PeerResets(Http2Limits(peer_resets=50, peer_resets_per_s=10))
    clock.now = 100.0
    assert [reset_calls(resets, clock, peer, 25) for _ in range(2)] == [False, False]
    assert reset_calls(resets, clock, same, 1)
    assert not reset_calls(resets, clock, other, 50)
    clock.now += 1
    assert not reset_calls(resets, clock, peer, 9)
    assert reset_calls(resets, clock, same, 2)


def test_budgets_of_addresses_are_bounded_and_keep_those_in_use():
    resets = PeerResets(Http2Limits(peer_resets=1, peer_resets_per_s=0))
    resets.spend("203.0.113.1", 0.0)
    for i in range(10_000):
        resets.spend(f"10.0.{i // 256}.{i % 256}", 0.0)
        if i % 1000 == 0:
            with pytest.raises(ConnectionFault, match="too many stream resets from one address"):
                resets.spend("203.0.113.1", 0.0)
    assert len(resets) == 4096


def test_rapid_resets_for_faults_of_the_client():
    client = Client(Server(resets=50, resets_per_s=0))
    sent = [client.request(stream) + frame(WINDOW_UPDATE, stream, number(0)) for stream in range(1, 103, 2)]
    assert goaway(client, *sent)[0] == ErrorCode.ENHANCE_YOUR_CALM


@pytest.mark.parametrize(
    "noise",
    [NO_SETTINGS, frame(PRIORITY, 1, bytes(5)), frame(DATA, 1), frame(42, 1, b"x"), frame(PING, 0, bytes(8), 1)],
)
def test_frames_without_effect(noise):
    client = Client(Server(noise_frames=50, noise_frames_per_s=1))
    client.send(frame(HEADERS, 1, client.encoder.encode(REQUEST), 4))
    assert goaway(client, 60 * noise)[0] == ErrorCode.ENHANCE_YOUR_CALM


def test_requests_that_cannot_be_served():
    class Refusing(Recorder):
        def __init__(self, head, stream) -> None:
            super().__init__(head, stream)
            stream.answer_head(TRAILERS)

    for served, flags in ((Refusing, 4), (Recorder, 5)):
        client = Client(Server(served, noise_frames=50, noise_frames_per_s=0))
        sent = [frame(HEADERS, i, client.encoder.encode(REQUEST), flags) for i in range(1, 25, 2)]
        assert goaway(client, *sent)[0] == ErrorCode.ENHANCE_YOUR_CALM


def test_window_updates_without_need():
    client = Client(Server(Echo, noise_frames=50, noise_frames_per_s=0))
    for stream in range(1, 201, 2):  # as many as answers is what clients send
        client.send(
            client.request(stream, b"x"), frame(WINDOW_UPDATE, 0, number(1)), frame(WINDOW_UPDATE, 0, number(1))
        )
        assert not client.server.closed
    assert goaway(client, *[frame(WINDOW_UPDATE, 0, number(1))] * 500)[0] == ErrorCode.ENHANCE_YOUR_CALM


def test_windows_of_one_byte():
    client = Client(Server(Echo, noise_frames=50, noise_frames_per_s=0))
    client.send(setting(4, 0), client.request(1, b"x" * 1000))
    sent = [frame(WINDOW_UPDATE, 1, number(1))] * 100
    assert goaway(client, *sent)[0] == ErrorCode.ENHANCE_YOUR_CALM


def test_data_by_the_byte():
    client = Client(Server(small_frames=50, small_frames_per_s=0))
    client.send(frame(HEADERS, 1, client.encoder.encode(REQUEST), 4))
    assert goaway(client, frame(DATA, 1, b"x") * 51)[0] == ErrorCode.ENHANCE_YOUR_CALM


def test_oversize_settings():
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


def test_pings_are_not_counted_while_data_are_sent():
    client = Client(Server(Echo, ping_strikes=1))
    for stream in range(1, 41, 2):
        answers = client.send(client.request(stream, b"x"), frame(PING, 0, bytes(8)), frame(PING, 0, bytes(8)))
        assert [answer.kind for answer in answers] == [HEADERS, DATA, HEADERS, PING, PING]


def test_pings_at_the_allowed_interval():
    client = Client(Server(ping_interval_s=10, ping_strikes=1, keepalive_idle=True))
    for _ in range(10):
        assert len(client.send(frame(PING, 0, bytes(8)))) == 1
        client.server.clock.now += 11
