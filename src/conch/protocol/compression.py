"""Content codings of HTTP bodies: gzip and deflate, which means the zlib container (RFC 9110, section 8.4.1)."""

import zlib
from collections.abc import Iterable
from contextlib import suppress

from conch.errors import InvalidRequest, Unsupported
from conch.tensor import Buffer

# What `Accept-Encoding` of a refusal says.
SUPPORTED = b"gzip, deflate"

_WINDOW_BITS = {b"gzip": 16 + zlib.MAX_WBITS, b"deflate": zlib.MAX_WBITS}
# Tensors are large and compress poorly: the fastest level costs a quarter of the default's time.
_LEVEL = 1


class UnknownCoding(Unsupported):
    """A request body is encoded in a way that this server does not know."""


def decompress(data: Buffer, coding: bytes, limit: int) -> Buffer:
    """Undo one content coding; `identity` and none at all leave the data as they are.

    Raises UnknownCoding for other codings, and InvalidRequest if the data are damaged, incomplete, followed by other
    bytes, or larger than `limit` bytes when decompressed. No more than `limit` bytes are ever held.
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
        # One byte more than allowed tells "too large" from "just fits".
        plain = inflater.decompress(data, limit + 1)
    except zlib.error as error:
        raise InvalidRequest(f"request body is not valid {coding.decode()} data: {error}") from None
    if len(plain) > limit:
        raise InvalidRequest(
            f"decompressed request body exceeds the maximum of {limit} bytes set by --http-max-input-size"
        )
    if not inflater.eof:
        raise InvalidRequest(f"request body is incomplete {coding.decode()} data")
    if inflater.unused_data:
        raise InvalidRequest(
            f"request body has {len(inflater.unused_data)} bytes behind the end of its {coding.decode()} data"
        )
    return plain


def decompress_small(data: Buffer, coding: bytes, limit: int) -> Buffer | None:
    """Undo one content coding if that yields no more than `limit` bytes; return None if it yields more.

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
    """Apply `gzip` or `deflate` to a body given in parts. Raises KeyError for another coding."""
    deflater = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW_BITS[coding])
    compressed = [deflater.compress(part) for part in parts]
    compressed.append(deflater.flush())
    return compressed


def preferred_coding(accept: bytes) -> bytes:
    """Choose from an `Accept-Encoding` header: the known coding with the highest weight, the first of equals.

    `*` is ignored, as Triton does; what is not understood is passed over. Without a usable preference it is `identity`.
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
