"""Tables and names, packed for compression: differences of times, their bytes in planes, ids as bytes.

A time has eight bytes; its difference to another time of the row, of the row before, or of the row of another table
that describes the same thing needs none to three. A compressor finds much in the planes of such differences.

Of names, ids of 128 bits in hexadecimal digits are packed as 16 bytes: random ids are most of what a compressed log
holds. As text such an id takes 20 bytes of it, packed 15.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

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


Table: TypeAlias = NDArray[np.void]

MAX_TABLE_BYTES = 1 << 30  # of all tables of a log
_MIN_ROW_BYTES = 64  # a row counts as that: unpacking takes 8 bytes a row for each of several copies of a column
_SAMPLE_ROWS = 4096
_INTEGER_TYPE = re.compile(r"[<>|]?[iu][1248]")
# What a column is the difference to: nothing, the row before, a column of the row, or one of the linked row.
_RAW, _ROW, _LINKED = "", "-", "linked."


class RowLink(NamedTuple):
    """Each row's `column` is the `number` of a row of another table, or of none."""

    column: str
    other: Table


def pack(table: Table, link: RowLink | None = None) -> tuple[dict[str, Any], bytes]:
    """Return a description (JSON) and the bytes of a table of integers."""
    names = list(table.dtype.names or ())
    columns: list[dict[str, Any]] = []
    parts: list[bytes] = []
    linked, bases = None, list[str]()
    if link is not None:
        names = [link.column, *(name for name in names if name != link.column)]
    for name in names:
        base = _best_base(table, name, bases, linked)
        data, width = _planes(_difference(table, name, base, linked), least=0 if columns else 1)
        columns.append({"name": name, "type": table[name].dtype.str, "base": base, "width": width})
        parts.append(data)
        if _is_wide(table, name):
            bases.append(name)
        if link is not None and linked is None:
            linked = _linked_rows(table, link)
            bases += [f"{_LINKED}{other}" for other in linked.dtype.names or () if _is_wide(linked, other)]
    return {"rows": len(table), "columns": columns}, b"".join(parts)


def packed_bytes(description: Mapping[str, Any]) -> int:
    """Return the size of a packed table, after a check of what it expands to. Raises KeyError, TypeError, ValueError.

    Every row takes at least a byte.
    """
    rows, columns = description["rows"], description["columns"]
    types = [_integer_type(column["type"]) for column in columns]
    widths = [column["width"] for column in columns]
    if type(rows) is not int or rows < 0 or not all(type(width) is int and 0 <= width <= 8 for width in widths):
        raise ValueError("rows and widths must be numbers")
    item = sum(dtype.itemsize for dtype in types)
    if expanded_bytes(description) > MAX_TABLE_BYTES or (rows and not sum(widths)):
        raise ValueError(f"{rows} rows of {item} bytes are too many")
    return int(rows * sum(widths))


def expanded_bytes(description: Mapping[str, Any]) -> int:
    """Return about how much memory a table takes while it is unpacked. Raises KeyError, TypeError, ValueError."""
    item = sum(_integer_type(column["type"]).itemsize for column in description["columns"])
    return int(description["rows"]) * max(item, _MIN_ROW_BYTES)


def _integer_type(text: object) -> np.dtype[Any]:
    """Return a type as it is written in a description: numpy would parse expressions, too. Raises ValueError."""
    if not isinstance(text, str) or _INTEGER_TYPE.fullmatch(text) is None:
        raise ValueError(f"a column is not of integers: {str(text)[:20]!r}")
    return np.dtype(text)


def unpack(description: Mapping[str, Any], data: memoryview, link: RowLink | None = None) -> Table:
    """Return the table that `pack` was given. Raises KeyError, TypeError, ValueError for anything else."""
    if packed_bytes(description) != len(data):
        raise ValueError(f"{len(data)} bytes instead of {packed_bytes(description)}")
    rows, columns = description["rows"], description["columns"]
    table = np.zeros(rows, np.dtype([(str(column["name"]), str(column["type"])) for column in columns]))
    linked = None
    at = 0
    for column in columns:
        name, base, size = str(column["name"]), str(column["base"]), column["width"] * rows
        values = _from_planes(data[at : at + size], rows, column["width"])
        at += size
        if base == _ROW:
            values = np.cumsum(values, dtype=np.int64)
        elif base != _RAW:
            values = values + _base(table, base, linked)
        table[name] = values.astype(column["type"])
        if link is not None and name == link.column:
            linked = _linked_rows(table, link)
    return table


def _linked_rows(table: Table, link: RowLink) -> Table:
    """Return the linked row of each row, zeros where it has none."""
    order = np.argsort(link.other["number"], kind="stable")
    numbers, wanted = link.other["number"][order], table[link.column]
    places = np.minimum(np.searchsorted(numbers, wanted), max(len(numbers) - 1, 0))
    has_link = numbers[places] == wanted if len(numbers) else np.zeros(len(table), bool)
    rows: Table = np.zeros(len(table), link.other.dtype)
    rows[has_link] = link.other[order[places[has_link]]]
    return rows


def _is_wide(table: Table, name: str) -> bool:
    return table.dtype[name].itemsize == 8


def _best_base(table: Table, name: str, bases: Sequence[str], linked: Table | None) -> str:
    """Return what a column is best stored as a difference to, by the bits of a sample of rows."""
    if len(table) < 2 or not _is_wide(table, name):
        return _RAW
    start = max(0, (len(table) - _SAMPLE_ROWS) // 2)
    part = slice(start, start + _SAMPLE_ROWS)

    def bits(base: str) -> float:
        values = _difference(table[part], name, base, None if linked is None else linked[part])[1:].astype(np.float64)
        return float(np.log2(1 + np.abs(values)).sum())

    return min((_RAW, _ROW, *bases), key=bits)


def _difference(table: Table, name: str, base: str, linked: Table | None) -> NDArray[np.int64]:
    values = _integers(table[name])
    if base == _RAW:
        return values
    if base == _ROW:
        return np.diff(values, prepend=np.int64(0))
    return values - _base(table, base, linked)


def _base(table: Table, base: str, linked: Table | None) -> NDArray[np.int64]:
    if not base.startswith(_LINKED):
        return _integers(table[base])
    if linked is None:
        raise ValueError(f"no rows for {base}")
    return _integers(linked[base.removeprefix(_LINKED)])


def _integers(values: NDArray[Any]) -> NDArray[np.int64]:
    """Return integers modulo 2⁶⁴, in which differences and sums are exact."""
    return np.ascontiguousarray(values).view(np.int64) if values.dtype.itemsize == 8 else values.astype(np.int64)


def _planes(values: NDArray[np.int64], least: int) -> tuple[bytes, int]:
    """Return the bytes of zigzag numbers (0, -1, 1, -2 …), the lowest of all first, and how many each has."""
    zigzag = np.ascontiguousarray((values << 1) ^ (values >> 63)).view(np.uint64)
    width = max((int(zigzag.max(initial=0)).bit_length() + 7) // 8, least)
    return zigzag.astype("<u8").view(np.uint8).reshape(-1, 8).T[:width].tobytes(), width


def _from_planes(data: memoryview, rows: int, width: int) -> NDArray[np.int64]:
    planes = np.zeros((rows, 8), np.uint8)
    planes[:, :width] = np.frombuffer(data, np.uint8).reshape(width, rows).T
    zigzag = planes.reshape(-1).view("<u8").astype(np.uint64)
    return (zigzag >> np.uint64(1)).view(np.int64) ^ -(zigzag & np.uint64(1)).view(np.int64)
