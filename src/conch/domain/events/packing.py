"""Tables of integers, packed for compression: differences of times, their bytes in planes.

A time has eight bytes; its difference to another time of the row, of the row before, or of the row of another table
that describes the same thing needs none to three. A compressor finds much in the planes of such differences.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

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
    found = numbers[places] == wanted if len(numbers) else np.zeros(len(table), bool)
    rows: Table = np.zeros(len(table), link.other.dtype)
    rows[found] = link.other[order[places[found]]]
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
