"""Cutting bytes into frames: the same however they arrive, and nothing but faults from what is none."""

from contextlib import suppress
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from conch.protocols.http2.frames import PREFACE, ConnectionFault
from conch.protocols.http2.limits import Http2Limits
from conch.protocols.http2.reader import FrameReader
from tests.unit.protocols.http2.peers import CONTINUATION, DATA, HEADERS, NO_SETTINGS, frame

LIMITS = Http2Limits(frame_bytes=20_000)


class FrameLog:
    """Remembers frames; pieces of one stream's data are one."""

    def __init__(self) -> None:
        self.frames: list[tuple] = []
        self.counted = 0

    def data(self, stream, data, size, ended) -> None:
        self.counted += size
        if self.frames and self.frames[-1][:2] == ("data", stream) and not self.frames[-1][3]:
            before = self.frames.pop()
            self.frames.append(("data", stream, before[2] + bytes(data), ended))
        else:
            self.frames.append(("data", stream, bytes(data), ended))

    def headers(self, stream, block, ended) -> None:
        self.frames.append(("headers", stream, block, ended))

    def frame(self, kind, stream, flags, payload) -> None:
        self.frames.append((kind, stream, flags, payload))


def parsed(*pieces: bytes, views: bool = False) -> FrameLog:
    """What is found in the pieces; `views` has them come in one and the same buffer, as from a socket."""
    target = FrameLog()
    reader = FrameReader(target, target, LIMITS)
    buffer = bytearray(max(map(len, pieces)))
    for piece in pieces:
        buffer[: len(piece)] = piece
        reader.feed(memoryview(buffer)[: len(piece)] if views else piece)
        buffer[:] = bytes(len(buffer))
    return target


@st.composite
def padded(draw, payload: bytes) -> tuple[bytes, int]:
    if not draw(st.booleans()):
        return payload, 0
    size = draw(st.integers(0, 255))
    return bytes((size,)) + payload + bytes(size), 8


@st.composite
def streams_of_frames(draw) -> bytes:
    sent = PREFACE + NO_SETTINGS
    for _ in range(draw(st.integers(0, 8))):
        stream = draw(st.integers(1, 5))
        match draw(st.sampled_from([DATA, HEADERS, 6, 99])):
            case 0:
                payload, flags = draw(padded(draw(st.binary(max_size=30)) * draw(st.sampled_from([1, 400]))))
                sent += frame(DATA, stream, payload, flags | draw(st.integers(0, 1)))
            case 1:
                payload, flags = draw(padded(draw(st.binary(max_size=30))))
                pieces = draw(st.lists(st.binary(max_size=9), max_size=3))
                sent += frame(HEADERS, stream, payload, flags | draw(st.integers(0, 1)) | (0 if pieces else 4))
                for index, piece in enumerate(pieces):
                    sent += frame(CONTINUATION, stream, piece, 4 if index == len(pieces) - 1 else 0)
            case kind:
                sent += frame(kind, stream, draw(st.binary(max_size=20)), draw(st.integers(0, 255)))
    return sent


@given(streams_of_frames(), st.data())
def test_how_bytes_are_cut_up_makes_no_difference(sent, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=20)))
    edges = [0, *cuts, len(sent)]
    pieces = [sent[start:end] for start, end in pairwise(edges)]
    whole, cut = parsed(sent), parsed(*pieces, views=data.draw(st.booleans()))
    assert whole.frames == cut.frames
    assert whole.counted == cut.counted


@given(st.lists(st.binary(max_size=200), max_size=10), st.booleans())
def test_any_bytes_are_frames_or_a_fault(pieces, greeted):
    target = FrameLog()
    reader = FrameReader(target, target, LIMITS)
    with suppress(ConnectionFault):
        if greeted:
            reader.feed(PREFACE + NO_SETTINGS)
        for piece in pieces:
            reader.feed(piece)
            assert len(reader._partial) <= LIMITS.header_bytes_hard + 9


def test_reading_stops_when_the_time_is_up_and_resumes_there() -> None:
    sent = b"".join(frame(42, i + 1, b"x") + frame(DATA, i + 1, b"data") for i in range(100)) + frame(
        HEADERS, 201, b"", 5
    )
    target, whole = FrameLog(), parsed(PREFACE + NO_SETTINGS + sent)
    reader = FrameReader(target, target, LIMITS)
    turns = 1
    more = reader.feed(PREFACE + NO_SETTINGS + sent, 0.0)
    while more:
        before = len(target.frames)
        more = reader.feed(b"", 0.0)
        assert len(target.frames) > before
        turns += 1
    assert target.frames == whole.frames
    assert turns > 5
