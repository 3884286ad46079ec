"""Frames: bytes to messages, in whatever pieces they come. Those from a child are not trusted."""

import marshal
import math
import tracemalloc
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conch.server.backends.child.conch_child.ipc import wire
from conch.server.backends.child.conch_child.ipc.wire import (
    MAX_CHILD_HEADER_SIZE,
    MAX_CHILD_PAYLOAD_SIZE,
    MAX_HEADER_SIZE,
    MAX_TEXT,
    MAX_VALUES,
    PREFIX,
    FrameDecoder,
    WireError,
    encode_to_child,
    encode_to_server,
    shortened,
)
from conch.server.backends.processes.untrusted import parse_message

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=10,
)


def messages(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(st.tuples(st.tuples(st.integers(0, 9), values), st.lists(st.binary(), max_size=3)), max_size=5)


CUTS = st.lists(st.integers(1, 40), max_size=20)


def server_decoder(max_payload: int = MAX_CHILD_PAYLOAD_SIZE) -> FrameDecoder:
    """What the server reads a child's frames with."""
    return FrameDecoder(partial(parse_message, max_values=MAX_VALUES), MAX_CHILD_HEADER_SIZE, max_payload)


def cut(decoder: FrameDecoder, stream: bytes, cuts: list[int]) -> list[tuple[Any, bytes]]:
    received: list[tuple[Any, Any]] = []
    for size in cuts:
        received += decoder.feed(stream[:size])
        stream = stream[size:]
    received += decoder.feed(stream)
    return [(message, bytes(payload)) for message, payload in received]


@given(messages(VALUES), CUTS)
def test_frames_survive_any_cutting(frames: list[tuple[tuple[object, ...], list[bytes]]], cuts: list[int]) -> None:
    stream = b"".join(encode_to_child(message, parts, sum(map(len, parts))) for message, parts in frames)
    assert cut(FrameDecoder(), stream, cuts) == [(message, b"".join(parts)) for message, parts in frames]


@pytest.fixture(scope="module", params=["orjson", "standard library"])
def encoder(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a child writes with: a model's interpreter may have no orjson."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param != "orjson":
            patch.setattr(wire, "orjson", None)
        yield


@pytest.mark.usefixtures("encoder")
@given(messages(JSON_VALUES), CUTS)
def test_frames_of_a_child_survive_any_cutting(
    frames: list[tuple[tuple[object, ...], list[bytes]]], cuts: list[int]
) -> None:
    stream = b"".join(encode_to_server(message, parts, sum(map(len, parts))) for message, parts in frames)
    assert cut(server_decoder(), stream, cuts) == [(message, b"".join(parts)) for message, parts in frames]


def header(content: bytes) -> bytes:
    return PREFIX.pack(len(content), 0) + content


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


# A tuple that contains itself, which marshal builds, and a tuple that claims 200 million items.
SELF_REFERENCE = b"\xa8\x02\x00\x00\x00" + b"i\x22\x00\x00\x00" + b"r\x00\x00\x00\x00"
MANY_ITEMS = b"(" + (200_000_000).to_bytes(4, "little") + b"N" * 20


@pytest.mark.parametrize(
    "stream",
    [
        header(SELF_REFERENCE),
        header(MANY_ITEMS),
        header(marshal.dumps((34, (), (), (), 1, 2), 2)),
        PREFIX.pack(MAX_CHILD_HEADER_SIZE + 1, 0),
        PREFIX.pack(1, MAX_CHILD_PAYLOAD_SIZE + 1),
        header(b""),
        header(b"[]"),
        header(b"{}"),
        header(b"34"),
        header(b"[34,NaN]"),
        header(b"[34,Infinity]"),
        header(b"[1.5]"),
        header(b"[[34]]"),
        header(b"[null]"),
        header(b"[34,"),
        header(b"[34] [35]"),
        header(b"[34,\xff]"),
        header(b'[34,"\\ud800"]'),
        header(b"[" * 100_000),
        header(b"[34," + b"[" * 2_000 + b"]" * 2_000 + b"]"),
        header(b"[34" + b",0" * MAX_VALUES + b"]"),
        header(b"[34," + b"9" * 100_000 + b"]"),
    ],
    ids=lambda stream: repr(stream[:24]),
)
def test_malformed_frames_of_a_child_are_refused(stream: bytes) -> None:
    with pytest.raises(WireError):
        server_decoder().feed(stream)


@given(st.binary(max_size=80))
def test_no_bytes_do_worse_than_be_refused(stream: bytes) -> None:
    decoder = server_decoder()
    try:
        for message, _ in decoder.feed(stream):
            assert isinstance(message, tuple)
    except WireError:
        pass


@given(messages(JSON_VALUES), st.data())
def test_mutated_frames_are_read_or_refused(
    frames: list[tuple[tuple[object, ...], list[bytes]]], data: st.DataObject
) -> None:
    stream = bytearray(b"".join(encode_to_server(message, parts, sum(map(len, parts))) for message, parts in frames))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(stream)))
        stream[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    try:
        for message, _ in server_decoder().feed(bytes(stream)):
            assert isinstance(message, tuple)
            assert message
    except WireError:
        pass


@pytest.mark.parametrize("item", [b"[]", b"{}", b"0", b'""', b"1e9", b'{"":[]}', b'"\\u00e9"', b'"\xf0\x9f\x90\x9a"'])
def test_memory_is_bounded_by_the_bytes_received(item: bytes) -> None:
    count = min(MAX_VALUES // 4, MAX_CHILD_HEADER_SIZE // len(item) - 8)
    stream = header(b"[1," + b",".join([item] * count) + b"]")
    decoder = server_decoder()
    tracemalloc.start()
    try:
        frames = decoder.feed(stream)
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(frames[0][0]) == count + 1
    assert used < 40 * len(stream)


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_incomplete_frames_take_the_memory_of_their_bytes(size: int) -> None:
    """A frame that arrives byte by byte is not kept as one object for each."""
    sent = 200_000
    data = PREFIX.pack(0, 1 << 30) + bytes(sent)
    decoder = server_decoder()
    tracemalloc.start()
    try:
        for at in range(0, len(data), size):
            assert decoder.feed(data[at : at + size]) == []
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert used < 2 * sent


def test_a_claimed_size_takes_no_memory() -> None:
    tracemalloc.start()
    try:
        assert server_decoder().feed(PREFIX.pack(MAX_CHILD_HEADER_SIZE, MAX_CHILD_PAYLOAD_SIZE) + b"[") == []
        assert tracemalloc.get_traced_memory()[0] < 10_000
    finally:
        tracemalloc.stop()


@pytest.mark.usefixtures("encoder")
def test_what_cannot_travel_is_refused() -> None:
    with pytest.raises(ValueError, match="unmarshallable"):
        encode_to_child((1, object()))
    with pytest.raises(ValueError, match="not JSON serializable"):
        encode_to_server((1, object()))
    with pytest.raises(ValueError, match="not JSON serializable"):
        encode_to_server((1, datetime.now(UTC)))
    with pytest.raises(ValueError, match="exceeds the limit"):
        encode_to_server((1, [0] * (MAX_VALUES + 1)))
    with pytest.raises(ValueError, match="exceeds the limit"):
        encode_to_server((1, "x" * MAX_CHILD_HEADER_SIZE))
    with pytest.raises(ValueError, match="shm-limit-byte-size"):
        encode_to_server((1,), [b""], MAX_CHILD_PAYLOAD_SIZE + 1)


@pytest.mark.usefixtures("encoder")
def test_floats_that_are_not_finite_and_surrogates_travel_as_texts() -> None:
    message = (1, [math.nan, math.inf, {"a": -math.inf}], "\ud800x", 2.5)
    ((received, _),) = server_decoder().feed(encode_to_server(message))
    assert received == (1, ["nan", "inf", {"a": "-inf"}], "?x", 2.5)


def test_long_texts_keep_their_ends() -> None:
    text = "begin" + "x" * 10 * MAX_TEXT + "end"
    short = shortened(text)
    assert len(short) <= MAX_TEXT
    assert short.startswith("begin")
    assert short.endswith("end")
    assert f"({len(text) - len(short.split(' … ')[0]) - len(short.split(' … ')[2])} characters omitted)" in short
    assert shortened("short") == "short"
