"""Frames: bytes to messages, in whatever pieces they come."""

import marshal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conch.backends.child.conch_child.ipc.wire import MAX_HEADER_SIZE, PREFIX, FrameDecoder, WireError, encode

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
FRAMES = st.lists(st.tuples(st.tuples(st.integers(0, 9), VALUES), st.lists(st.binary(), max_size=3)), max_size=5)


@given(FRAMES, st.lists(st.integers(1, 40), max_size=20))
def test_frames_survive_any_cutting(frames: list[tuple[tuple[object, ...], list[bytes]]], cuts: list[int]) -> None:
    stream = b"".join(encode(message, parts, sum(map(len, parts))) for message, parts in frames)
    decoder = FrameDecoder()
    received = []
    for cut in cuts:
        received += decoder.feed(stream[:cut])
        stream = stream[cut:]
    received += decoder.feed(stream)
    assert [(message, bytes(payload)) for message, payload in received] == [
        (message, b"".join(parts)) for message, parts in frames
    ]


@pytest.mark.parametrize(
    "stream",
    [
        b"\xff" * 64,
        PREFIX.pack(MAX_HEADER_SIZE + 1, 0),
        PREFIX.pack(1, 1 << 60),
        PREFIX.pack(3, 0) + b"abc",
        PREFIX.pack(0, 0),
        PREFIX.pack(5, 0) + marshal.dumps(7, 2),
        PREFIX.pack(len(marshal.dumps((), 2)), 0) + marshal.dumps((), 2),
    ],
)
def test_malformed_frames_are_refused(stream: bytes) -> None:
    with pytest.raises(WireError):
        FrameDecoder().feed(stream)


@given(st.binary(max_size=80))
def test_no_bytes_do_worse_than_be_refused(stream: bytes) -> None:
    decoder = FrameDecoder()
    try:
        for message, _ in decoder.feed(stream):
            assert isinstance(message, tuple)
    except WireError:
        pass


def test_what_cannot_travel_is_refused() -> None:
    with pytest.raises(ValueError, match="unmarshallable"):
        encode((1, object()))
