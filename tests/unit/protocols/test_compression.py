import gzip
import zlib

import pytest

from conch.base.errors import InvalidRequest
from conch.protocols.compression import UnknownCoding, compress, decompress, preferred_coding

TEXT = b"tensor " * 1000


@pytest.mark.parametrize(
    ("coding", "data"),
    [(b"gzip", gzip.compress(TEXT, mtime=0)), (b"deflate", zlib.compress(TEXT)), (b"identity", TEXT)],
)
def test_decompress(coding, data):
    assert decompress(data, coding, len(TEXT)) == TEXT


@pytest.mark.parametrize("coding", [b"gzip", b"deflate"])
def test_compression_round_trip(coding):
    parts = [TEXT, memoryview(TEXT), b""]
    assert decompress(b"".join(compress(parts, coding)), coding, 2 * len(TEXT)) == TEXT * 2


@pytest.mark.parametrize(
    ("coding", "data", "message"),
    [
        (b"gzip", b"", "nothing to be decompressed"),
        (b"gzip", gzip.compress(TEXT, mtime=0)[:-1], "incomplete gzip data"),
        (b"gzip", TEXT, "not valid gzip data"),
        (b"gzip", gzip.compress(TEXT, mtime=0) + b"more", "4 bytes behind the end"),
        (b"deflate", zlib.compress(TEXT)[2:-4], "not valid deflate data"),
        (b"deflate", gzip.compress(TEXT, mtime=0), "not valid deflate data"),
    ],
)
def test_damaged_data(coding, data, message):
    with pytest.raises(InvalidRequest, match=message):
        decompress(data, coding, 10_000)


def test_a_bomb_stops_at_the_limit():
    bomb = gzip.compress(bytes(50_000_000), mtime=0)
    assert len(bomb) < 60_000
    with pytest.raises(
        InvalidRequest,
        match=r"exceeds the maximum allowed value of 1000 bytes\. Use --http-max-input-size to increase the limit",
    ):
        decompress(bomb, b"gzip", 1000)


@pytest.mark.parametrize("coding", [b"br", b"GZIP", b"gzip, deflate", b"\xff"])
def test_other_codings(coding):
    with pytest.raises(UnknownCoding, match="Unsupported compression type"):
        decompress(TEXT, coding, 10_000)


@pytest.mark.parametrize(
    ("accept", "coding"),
    [
        (b"", b"identity"),
        (b"gzip", b"gzip"),
        (b"deflate, gzip", b"deflate"),
        (b"gzip;q=0.5, deflate;q=0.8", b"deflate"),
        (b"gzip; q=0.5, identity;q=0.6", b"identity"),
        (b"gzip;q=0", b"identity"),
        (b"*", b"identity"),
        (b"br, zstd;q=0.9, gzip;q=0.1", b"gzip"),
        (b"GZip", b"gzip"),
        (b"gzip;q=nonsense, deflate;q=2, ;;,", b"identity"),
        (b"gzip;level=9", b"identity"),
    ],
)
def test_preferred_coding(accept, coding):
    assert preferred_coding(accept) == coding
