"""Names, packed for compression: ids of 128 bits in hexadecimal digits as 16 bytes.

Random ids are most of what a compressed log holds: as text such an id takes 20 bytes of it, packed 15.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

_ID_BYTES: Final = 16
# How the digits of an id are written, by the number that stands for the id among the names: those of a trace id, and
# those of a UUID (RFC 9562).
_DIGITS, _UUID = 1, 2
_PACKED: Final = re.compile(r"[0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def pack_ids(names: Sequence[str]) -> tuple[list[str | int], bytes]:
    """Return the names with a number in the place of each id, and the ids: all first bytes, all second ones …"""
    texts: list[str | int] = list(names)
    digits = list[str]()
    for index, name in enumerate(names):
        if _PACKED.fullmatch(name) is not None:
            texts[index] = _UUID if "-" in name else _DIGITS
            digits.append(name.replace("-", ""))
    return texts, _turned(bytes.fromhex("".join(digits)), -1, _ID_BYTES)


def packed_id_bytes(texts: Sequence[Any]) -> int:
    """Return the size of the ids of packed names, after a check of these. Raises ValueError."""
    count = 0
    for text in texts:
        if type(text) is int and text in (_DIGITS, _UUID):
            count += 1
        elif not isinstance(text, str):
            raise ValueError("names must be texts, or the numbers of forms of ids")
    return count * _ID_BYTES


def unpack_ids(texts: Sequence[str | int], data: memoryview) -> list[str]:
    """Return the names of which `pack_ids` has made these, whose ids are as long as `packed_id_bytes` says."""
    ids = _ids(_turned(data, _ID_BYTES, -1).hex())
    return [text if isinstance(text, str) else _written(text, next(ids)) for text in texts]


def _ids(digits: str) -> Iterator[str]:
    return (digits[at : at + 2 * _ID_BYTES] for at in range(0, len(digits), 2 * _ID_BYTES))


def _written(form: int, id_: str) -> str:
    return id_ if form == _DIGITS else f"{id_[:8]}-{id_[8:12]}-{id_[12:16]}-{id_[16:20]}-{id_[20:]}"


def _turned(data: bytes | memoryview, rows: int, columns: int) -> bytes:
    return np.frombuffer(data, np.uint8).reshape(rows, columns).T.tobytes() if len(data) else b""
