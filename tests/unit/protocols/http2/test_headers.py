"""Header blocks: read as their encoder meant them, however often they come; written so that others can read them."""

import pytest
from hpack import Decoder, Encoder, HPACKError
from hypothesis import given
from hypothesis import strategies as st

from conch.protocols.http2.frames import ConnectionFault, StreamFault
from conch.protocols.http2.header_blocks import RequestBlocks, response_block, trailers_block
from conch.protocols.http2.hpack_decoder import HpackDecoder

PSEUDO = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/x")]
NAMES = st.sampled_from([b"a", b"te-x", b"user-agent", b"cookie", b"x-long-name-of-a-field"])
VALUES = st.binary(max_size=40).filter(lambda value: not {0, 10, 13} & set(value))


def blocks(limit: int = 65_536) -> RequestBlocks:
    return RequestBlocks(lambda head: head, limit)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"/a", b"/b", b"/c" * 30]),
            st.lists(st.tuples(NAMES, VALUES), max_size=4),
            st.booleans(),  # sent twice
            st.sampled_from([None, 0, 64, 4096]),  # a new size of the table before it
        ),
        max_size=12,
    )
)
def test_a_connection_is_read_as_its_client_meant_it(requests):
    client, server = Encoder(), blocks()
    for path, fields, twice, size in requests:
        if size is not None:
            client.header_table_size = size
        for _ in range(1 + twice):
            head = server.read(client.encode([*PSEUDO[:2], (b":path", path), *fields]))
            assert (head.method, head.path, head.fields) == (b"POST", path, fields)


def test_a_block_that_means_something_else_after_the_table_changed():
    client, server = Encoder(), blocks()
    for name in (b"a", b"b"):
        client.encode([(name, b"1")])
    entries = b"".join(b"\x40\x01" + name + b"\x01" + b"1" for name in (b"a", b"b"))
    server.skip(entries)
    block = bytes((0x83, 0x86, 0x84, 0x80 | 62))  # POST, http, /, the newest entry
    assert server.read(block).fields == [(b"b", b"1")]
    assert server.read(block).fields == [(b"b", b"1")]
    server.skip(b"\x40\x01c\x011")
    assert server.read(block).fields == [(b"c", b"1")]
    server.skip(b"\x20\x3f\xe1\x1f")  # emptied by a size of 0, then 4096 again
    with pytest.raises(ConnectionFault, match="COMPRESSION_ERROR"):
        server.read(block)


@given(st.binary(max_size=300))
def test_any_block_is_a_request_or_a_fault(block):
    try:
        head = blocks().read(block)
    except (ConnectionFault, StreamFault):
        return
    assert head.path


@given(st.lists(st.tuples(NAMES, st.binary(max_size=300)), max_size=5), st.sampled_from([200, 204, 404, 415]))
def test_others_can_read_what_is_written(fields, status):
    decoder = Decoder()
    assert decoder.decode(response_block(status, fields), raw=True) == [(b":status", b"%d" % status), *fields]
    assert decoder.decode(trailers_block(fields), raw=True) == fields
    assert not decoder.header_table.dynamic_entries


@pytest.mark.parametrize("size", [b"\x20", b"\x3e", b"\x3f\x00", b"\x3f\xe1\x1f"])
def test_a_block_changes_the_size_of_the_table_twice_at_most(size):
    block = Encoder().encode([*PSEUDO])
    assert blocks().read(size * 2 + block).path == b"/x"
    with pytest.raises(ConnectionFault, match="size"):
        blocks().read(size * 3 + block)


# Literal and indexed fields, sizes of the table, and strings in Huffman's code that may be cut or end wrongly.
PIECES = st.one_of(
    st.binary(max_size=8),
    st.sampled_from([b"\x82", b"\xbe", b"\x00", b"\x40", b"\x10", b"\x44", b"\x0f\x01", b"\x20", b"\x3f\xe1\x1f"]),
    st.binary(max_size=30).map(lambda code: bytes((0x80 | len(code),)) + code),
    st.text(st.characters(max_codepoint=255), max_size=20).map(
        lambda text: Encoder().encode([(text.encode("latin-1"), text.encode("latin-1"))])
    ),
)


@given(st.lists(st.lists(PIECES, max_size=6).map(b"".join), min_size=1, max_size=4))
def test_blocks_mean_what_another_decoder_reads(sent):
    ours, other = HpackDecoder(65_536), Decoder(max_header_list_size=65_536)
    for block in sent:
        try:
            fields = other.decode(block, raw=True)
        except (HPACKError, IndexError):
            with pytest.raises(ConnectionFault):
                ours.decode(block)
            return
        assert ours.decode(block) == fields
        assert list(ours.table.dynamic_entries) == list(other.header_table.dynamic_entries)


@pytest.mark.parametrize("value", [b"y" * 60_000, b"\xff" * 60_000, bytes(range(256)) * 200])
def test_long_values_are_read_and_bounded(value):
    block = Encoder().encode([(b"x", value)])
    assert HpackDecoder(65_536).decode(block) == [(b"x", value)]
    with pytest.raises(ConnectionFault, match="header list too large"):
        HpackDecoder(16_384).decode(block)
