"""Making wrong input from right input: bytes are changed here and there, without knowledge of what they mean."""

from collections.abc import Sequence
from random import Random

_EDGES = (b"\x00", b"\xff", b"\x7f", b"\x80", b"\r\n", b"\n", b"\r", b" ", b"\t", b":", b",", b'"', b"\\", b"..")


def mutated(random: Random, data: bytes, words: Sequence[bytes], other: bytes) -> bytes:
    """Return `data` with one to a few changes; `words` mean something to the reader, `other` is input of its kind."""
    for _ in range(random.choice((1, 1, 1, 2, 3, 8))):
        data = random.choice(_CHANGES)(random, data, words, other)
    return data


def pieces(random: Random, data: bytes) -> list[bytes]:
    """Cut a stream as a network might: not at all, in a few places, or after every byte."""
    kind = random.randrange(4)
    if kind == 0 or len(data) < 2:
        return [data]
    if kind == 1 and len(data) < 400:
        return [data[i : i + 1] for i in range(len(data))]
    cuts = sorted(random.randrange(1, len(data)) for _ in range(random.randint(1, 6)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if a < b]


def _place(random: Random, data: bytes) -> int:
    return random.randint(0, len(data))


def _flip(random: Random, data: bytes, words: Sequence[bytes], other: bytes) -> bytes:
    if not data:
        return data
    at = random.randrange(len(data))
    return data[:at] + bytes((data[at] ^ (1 << random.randrange(8)),)) + data[at + 1 :]


def _overwrite(random: Random, data: bytes, words: Sequence[bytes], other: bytes) -> bytes:
    at = _place(random, data)
    word = random.choice(words)
    return data[:at] + word + data[at + len(word) :]


def _insert(random: Random, data: bytes, words: Sequence[bytes], other: bytes) -> bytes:
    at = _place(random, data)
    return data[:at] + random.choice(random.choice((words, _EDGES))) + data[at:]


def _delete(random: Random, data: bytes, words: Sequence[bytes], other: bytes) -> bytes:
    at = _place(random, data)
    return data[:at] + data[at + random.choice((1, 1, 2, 4, 16, 64)) :]


def _cut(random: Random, data: bytes, words: Sequence[bytes], other: bytes) -> bytes:
    return data[: _place(random, data)]


def _repeat(random: Random, data: bytes, words: Sequence[bytes], other: bytes) -> bytes:
    at = _place(random, data)
    part = data[at : at + random.choice((1, 4, 16, 64, 256))]
    return data[:at] + part * random.choice((2, 2, 3, 20)) + data[at + len(part) :]


def _splice(random: Random, data: bytes, words: Sequence[bytes], other: bytes) -> bytes:
    return data[: _place(random, data)] + other[_place(random, other) :]


def _swap(random: Random, data: bytes, words: Sequence[bytes], other: bytes) -> bytes:
    """Put a word in the place of another one that is there."""
    present = [word for word in random.sample(list(words), min(len(words), 12)) if word in data]
    if not present:
        return _insert(random, data, words, other)
    return data.replace(random.choice(present), random.choice(words), random.choice((1, -1)))


def _number(random: Random, data: bytes, words: Sequence[bytes], other: bytes) -> bytes:
    """Change a number that is written in digits."""
    digits = [at for at in range(len(data)) if data[at : at + 1].isdigit()]
    if not digits:
        return _flip(random, data, words, other)
    begin = end = random.choice(digits)
    while data[end : end + 1].isdigit():
        end += 1
    value = int(data[begin : min(end, begin + 20)])
    changed = random.choice(
        (value + 1, value - 1, -value, 0, value * 10, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64, 10**30, 1.5, 1e308)
    )
    return data[:begin] + str(changed).encode() + data[end:]


_CHANGES = (_flip, _overwrite, _insert, _delete, _cut, _repeat, _splice, _swap, _swap, _number, _number)
