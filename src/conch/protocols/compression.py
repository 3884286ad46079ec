"""Content codings of HTTP bodies: gzip, and deflate in the zlib format (RFC 9110, section 8.4.1)."""

import zlib
from collections.abc import Iterable
from contextlib import suppress

from conch.base.errors import InvalidRequest, Unsupported
from conch.domain.tensor import Buffer

# The `Accept-Encoding` header of a refusal.
SUPPORTED = b"gzip, deflate"

_WINDOW_BITS = {b"gzip": 16 + zlib.MAX_WBITS, b"deflate": zlib.MAX_WBITS}
# The largest ratio of deflate.
MAX_RATIO = 1032
# Tensors are large and compress poorly; the fastest level takes a quarter of the default's time.
_LEVEL = 1


class UnknownCoding(Unsupported):
    """The content coding of a request body is not supported."""


def decompress(data: Buffer, coding: bytes, limit: int) -> Buffer:
    """Decode one content coding: gzip, deflate or identity.

    Raises UnknownCoding for other codings, and InvalidRequest for data that are damaged, incomplete, followed by other
    bytes, or larger than `limit` bytes when decompressed. At most `limit` + 1 bytes are decompressed.
    """
    if coding == b"identity":
        return data
    window_bits = _WINDOW_BITS.get(coding)
    if window_bits is None:
        name = coding.decode("ascii", "backslashreplace")
        raise UnknownCoding(f"Unsupported compression type '{name}' in Content-Encoding; use gzip or deflate")
    if len(data) == 0:
        raise InvalidRequest("nothing to be decompressed: the request body is empty")
    inflater = zlib.decompressobj(window_bits)
    try:
        # One byte more than allowed, to detect data that are too large.
        plain = inflater.decompress(data, limit + 1)
    except zlib.error as error:
        raise InvalidRequest(f"request body is not valid {coding.decode()} data: {error}") from None
    if len(plain) > limit:
        raise InvalidRequest(
            f"decompressed request body exceeds the maximum allowed value of {limit} bytes. "
            "Use --http-max-input-size to increase the limit."
        )
    if not inflater.eof:
        raise InvalidRequest(f"request body is incomplete {coding.decode()} data")
    if inflater.unused_data:
        raise InvalidRequest(
            f"request body has {len(inflater.unused_data)} bytes behind the end of its {coding.decode()} data"
        )
    return plain


def decompress_small(data: Buffer, coding: bytes, limit: int) -> Buffer | None:
    """Decode one content coding, or return None if the result is larger than `limit` bytes.

    Raises as `decompress`.
    """
    window_bits = _WINDOW_BITS.get(coding)
    if window_bits is not None:
        if len(data) > limit:
            return None
        with suppress(zlib.error):
            if len(zlib.decompressobj(window_bits).decompress(data, limit + 1)) > limit:
                return None
    return decompress(data, coding, limit)


def compress(parts: Iterable[Buffer], coding: bytes) -> list[bytes]:
    """Compress the parts of a body with `gzip` or `deflate`. Raises KeyError for another coding."""
    deflater = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW_BITS[coding])
    compressed = [deflater.compress(part) for part in parts]
    compressed.append(deflater.flush())
    return compressed


def preferred_coding(accept: bytes) -> bytes:
    """Return the supported coding with the highest weight in an `Accept-Encoding` header, the first of equal ones.

    `*` is ignored, as in Triton, and so are invalid items. The default is `identity`.
    """
    best, best_weight = b"identity", 0.0
    for item in accept.split(b","):
        name, _, parameter = item.partition(b";")
        coding = name.strip().lower()
        weight = _weight(parameter.strip())
        if weight > best_weight and (coding in _WINDOW_BITS or coding == b"identity"):
            best, best_weight = coding, weight
    return best


def _weight(parameter: bytes) -> float:
    if not parameter:
        return 1.0
    key, _, value = parameter.partition(b"=")
    try:
        weight = float(value)
    except ValueError:
        return 0.0
    return weight if key.strip().lower() == b"q" and 0.0 <= weight <= 1.0 else 0.0
