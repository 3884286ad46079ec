"""Elements as JSON, with NaN, infinities and bytes that are not UTF-8."""

import orjson
import pytest

from conch.domain.tensor import BYTES, Tensor, pack_bytes
from conch.protocols.v2_json.data import write_exactly

EVERY = [bytes([octet]) for octet in range(256)]


def written(*elements: bytes) -> bytes:
    return write_exactly(Tensor("OUT", BYTES, (len(elements),), pack_bytes(list(elements))))


@pytest.mark.parametrize("text", ["", "plain", "".join(map(chr, range(0x80))), "häuser \u2028 \U0001f41a", '\\\\"\\n'])
def test_text_beside_bytes_that_are_not_utf8_is_escaped_as_in_any_string(text: str) -> None:
    quoted = orjson.dumps(text)
    assert written(text.encode() + b"\xff") == b"[" + quoted[:-1] + b'\xff"]'
    assert written(b"\xc3" + text.encode()) == b'["\xc3' + quoted[1:] + b"]"


def test_every_byte_passes() -> None:
    text = written(b"".join(EVERY))
    read = orjson.loads(text.decode("latin-1"))  # each byte is the character of its number then
    assert read == ["".join(map(chr, range(256)))]
    assert written(*EVERY).count(b",") == 256
