"""Cutting data into messages: the same however they arrive, plain or compressed, and nothing but errors from others."""

import gzip
import struct
import zlib
from contextlib import suppress
from itertools import pairwise

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conch.base.errors import InvalidRequest
from conch.server.frontends.grpc import framing
from conch.server.frontends.grpc.framing import MessageReader, compressed
from conch.server.frontends.grpc.status import GrpcError

CODINGS = {b"identity": lambda data: data, b"gzip": gzip.compress, b"deflate": zlib.compress}


def framed(message: bytes, flag: int = 0) -> bytes:
    return struct.pack(">BI", flag, len(message)) + message


def read(reader: MessageReader, *pieces: bytes) -> list[bytes]:
    messages = []
    for piece in pieces:
        reader.add(piece)
        while (message := reader.next()) is not None:
            messages.append(bytes(message))
    return messages


@given(
    st.lists(st.tuples(st.binary(max_size=50), st.integers(1, 300), st.booleans()), max_size=6),
    st.sampled_from([b"gzip", b"deflate"]),
    st.data(),
)
def test_how_data_are_cut_up_makes_no_difference(parts, coding, data):
    messages = [part * times for part, times, _ in parts]
    sent = b"".join(
        framed(CODINGS[coding](message), 1) if packed else framed(message)
        for message, (_, _, packed) in zip(messages, parts, strict=True)
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=10)))
    edges = [0, *cuts, len(sent)]
    reader = MessageReader(coding)
    views = data.draw(st.booleans())
    pieces = [sent[start:end] for start, end in pairwise(edges)]
    assert read(reader, *(map(memoryview, pieces) if views else pieces)) == messages
    assert not reader.midway


@given(st.lists(st.binary(max_size=60), max_size=8), st.sampled_from(sorted(CODINGS)))
def test_any_bytes_are_messages_or_an_error(pieces, coding):
    with suppress(GrpcError, InvalidRequest):
        assert all(isinstance(message, bytes) for message in read(MessageReader(coding), *pieces))


def test_an_announcement_alone_gets_no_memory():
    before = psutil.Process().memory_info().rss
    readers = [MessageReader(b"identity") for _ in range(20)]
    for reader in readers:
        assert read(reader, struct.pack(">BI", 0, 2**31 - 1), b"x" * 5000) == []
    assert psutil.Process().memory_info().rss - before < 50 * 2**20


def test_a_message_beyond_the_limit_is_refused():
    with pytest.raises(GrpcError, match="2147483648 bytes exceeds the maximum of 2147483647"):
        read(MessageReader(b"identity"), struct.pack(">BI", 0, 2**31))


def test_a_small_message_does_not_grow_without_bound(monkeypatch):
    monkeypatch.setattr(framing, "MAX_DECOMPRESSED_BYTES", 1000)
    assert read(MessageReader(b"gzip"), framed(gzip.compress(bytes(1000), mtime=0), 1)) == [bytes(1000)]
    with pytest.raises(GrpcError, match="exceeds the maximum of 1000"):
        read(MessageReader(b"gzip"), framed(gzip.compress(bytes(1001), mtime=0), 1))


@pytest.mark.parametrize(
    ("coding", "sent", "text"),
    [
        (b"identity", framed(b"x", 1), "without a grpc-encoding"),
        (b"gzip", framed(b"this is plain", 1), "not valid gzip"),
        (b"gzip", framed(gzip.compress(b"x", mtime=0)[:-1], 1), "not exactly one complete"),
        (b"deflate", framed(zlib.compress(b"x") + b"y", 1), "not exactly one complete"),
        (b"gzip", framed(b"x", 2), "expected 0 or 1"),
    ],
)
def test_malformed_messages_are_client_errors(coding, sent, text):
    with pytest.raises(InvalidRequest, match=text):
        read(MessageReader(coding), sent)


@given(st.lists(st.binary(max_size=100), max_size=4), st.sampled_from([b"gzip", b"deflate"]), st.integers(1, 9))
def test_what_is_compressed_here_is_read_there(parts, coding, level):
    packed = b"".join(compressed(parts, coding, level))
    assert zlib.decompress(packed, 47) == b"".join(parts)
