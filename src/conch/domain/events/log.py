"""A read event log: numpy tables with the columns of `layout`, and their form as a file.

The file form is a line with the format, a JSON header, and the tables column by column, so that it compresses well:
times relative to the begin of their row, numbers relative to the previous row, the bytes of each column ordered by
significance.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import orjson

from conch.base.errors import InvalidRequest, NotFound
from conch.domain.events.layout import DTYPES, FORMAT, KINDS, NAME, NUMBER, TIME, Column, first_time

Table: TypeAlias = npt.NDArray[np.void]
Cell: TypeAlias = int | str

_MAGIC: Final = b"conch events "
_FIRST_LINE: Final = re.compile(rb"conch events (\d{1,9}) (\d{1,12})\n")
_MAX_FIRST_LINE_BYTES: Final = 40
_MAX_ROWS: Final = 1 << 28
# How many times larger than in the file a row may be in memory, because of columns that the file lacks.
_MAX_GROWTH: Final = 4
_TYPES: Final = frozenset({"<i8", "<u8", "<i4", "<u4", "<i2", "<u2", "<u1"})


@dataclass(frozen=True)
class EventLog:
    """The events of a server up to one moment: `monotonic_ns` of its clock, which was `wall_ns` of Unix time.

    Rows of things that ended before `overrun_before` (monotonic ns, 0 if none) may be missing: `lost` has how many, by
    kind of row. `server` describes versions and machine. `names[0]` is "".
    """

    monotonic_ns: int = 0
    wall_ns: int = 0
    overrun_before: int = 0
    lost: Mapping[str, int] = field(default_factory=dict)
    server: Mapping[str, Any] = field(default_factory=dict)
    names: Sequence[str] = ("",)
    tables: Mapping[str, Table] = field(default_factory=dict)

    def __post_init__(self) -> None:
        empty = {kind: np.zeros(0, dtype) for kind, dtype in DTYPES.items()}
        object.__setattr__(self, "tables", {**empty, **self.tables})

    @property
    def requests(self) -> Table:
        """One row for each request to a model version, in the order of their ends."""
        return self.tables["requests"]

    @property
    def batches(self) -> Table:
        """One row for each execution."""
        return self.tables["batches"]

    @property
    def exchanges(self) -> Table:
        """One row for each call of a client."""
        return self.tables["exchanges"]

    @property
    def steps(self) -> Table:
        """One row for each step of an engine."""
        return self.tables["steps"]

    @property
    def pauses(self) -> Table:
        """One row for each pause of the event loop."""
        return self.tables["pauses"]

    @property
    def instances(self) -> Table:
        """One row for each change of an instance."""
        return self.tables["instances"]

    @property
    def changes(self) -> Table:
        """One row for each load, unload and change of limits."""
        return self.tables["changes"]

    def wall(self, time: int) -> int:
        """Return the Unix time in ns of a time in the log, by the wall clock of when the log was read."""
        return self.wall_ns + int(time) - self.monotonic_ns

    def find(self, text: str) -> int:
        """Return the number of the newest request with an id: `#number`, its id, X-Request-Id or trace id.

        Raises NotFound.
        """
        if re.fullmatch(r"#\d{1,18}", text):
            if np.any(self.requests["number"] == int(text[1:])):
                return int(text[1:])
        elif text and text in self.names:
            ids = self.tables["ids"]
            numbers = ids["request"][ids["text"] == self.names.index(text)]
            numbers = numbers[np.isin(numbers, self.requests["number"])]
            if len(numbers):
                return int(numbers.max())
        missing = "; it may be one of the rows that later ones have overwritten" if self.overrun_before else ""
        known = f"it holds {len(self.requests)} requests"
        raise NotFound(f"no request '{text}' in the event log: {known}{missing}")

    @classmethod
    def of_rows(cls, rows: Mapping[str, Sequence[Mapping[str, Cell]]], **header: Any) -> "EventLog":
        """Make a log of rows by kind. Columns that are left out are 0; names and codes are given as texts."""
        names = NameTable()
        tables = {kind: table_of(kind, lambda row, column: row.get(column, 0), rows[kind], names) for kind in rows}
        return cls(names=names.texts, tables=tables, **header)

    def to_bytes(self, resolution_ns: int = 1) -> bytes:
        """Return the file form. A coarser resolution of times makes it smaller when it is compressed."""
        tables = {
            kind: {"rows": len(table), "columns": [[column.name, column.type] for column in KINDS[kind]]}
            for kind, table in self.tables.items()
        }
        header = orjson.dumps(
            {
                "monotonic_ns": self.monotonic_ns,
                "wall_ns": self.wall_ns,
                "overrun_before": self.overrun_before,
                "resolution_ns": resolution_ns,
                "lost": dict(self.lost),
                "server": dict(self.server),
                "names": list(self.names),
                "tables": tables,
            }
        )
        parts = [b"%b%d %d\n" % (_MAGIC, FORMAT, len(header)), header]
        for kind, table in self.tables.items():
            first = first_time(kind)
            begin = table[first] // resolution_ns if first else None
            for column in KINDS[kind]:
                values = table[column.name]
                if column.meaning == TIME:
                    values = values // resolution_ns
                parts.append(_encode(column, values, None if column.name == first else begin))
        return b"".join(parts)

    @classmethod
    def of_bytes(cls, data: bytes | bytearray | memoryview) -> "EventLog":
        """Read the file form. Raises InvalidRequest for anything else, and for logs of newer versions."""
        data = memoryview(data)
        first = _FIRST_LINE.match(data[:_MAX_FIRST_LINE_BYTES])
        if first is None:
            raise InvalidRequest("not an event log: it begins with 'conch events'")
        if int(first[1]) > FORMAT:
            raise InvalidRequest(
                f"the event log was written by a newer version of Conch: its format is {int(first[1])}, "
                f"this version reads up to {FORMAT}"
            )
        start = first.end() + int(first[2])
        if start > len(data):
            raise _cut_short(len(data), start)
        try:
            header = orjson.loads(data[first.end() : start])
            described = _Description.of(header)
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidRequest(f"the header of the event log is not valid: {error}") from None
        end = start + described.bytes
        if len(data) != end:
            raise _cut_short(len(data), end)
        tables: dict[str, Table] = {}
        for kind, rows, columns in described.tables:
            table = np.zeros(rows, DTYPES.get(kind, np.dtype([])))
            known = {column.name: column for column in KINDS.get(kind, ())}
            begin = None
            for name, dtype in columns:
                piece = data[start : start + rows * dtype.itemsize]
                start += len(piece)
                column = known.get(name)
                if column is None:
                    continue
                values = _decode(column, piece, dtype, begin)
                if name == first_time(kind):
                    begin = values
                if column.meaning == TIME:
                    values = values.astype(np.int64) * np.int64(described.resolution_ns)
                table[name] = values.astype(column.type, copy=False)
            if kind in KINDS:
                _check(kind, table, len(described.names))
                tables[kind] = table
        return cls(
            described.monotonic_ns,
            described.wall_ns,
            described.overrun_before,
            described.lost,
            described.server,
            described.names,
            tables,
        )


class NameTable:
    """Numbers names in the order of their first use; "" is 0."""

    def __init__(self) -> None:
        self.texts = [""]
        self._numbers = {"": 0}

    def number(self, text: str) -> int:
        """Return the number of a name."""
        number = self._numbers.get(text)
        if number is None:
            number = self._numbers[text] = len(self.texts)
            self.texts.append(text)
        return number


def table_of(kind: str, cell: Callable[[Any, str], Cell], rows: Sequence[Any], names: NameTable) -> Table:
    """Return the table of rows whose cells `cell` returns by the name of their column, within the range of its type."""
    table = np.zeros(len(rows), DTYPES[kind])
    for column in KINDS[kind]:
        values: list[Any] = [cell(row, column.name) for row in rows]
        if column.meaning == NAME:
            values = [names.number(value) if isinstance(value, str) else value for value in values]
        elif column.codes:
            values = [column.codes.index(value) if isinstance(value, str) else value for value in values]
        limits = np.iinfo(column.type)
        try:
            table[column.name] = np.clip(np.array(values, np.int64), max(limits.min, -(2**63)), limits.max)
        except OverflowError:
            table[column.name] = [min(max(value, limits.min), limits.max) for value in values]
    return table


@dataclass(frozen=True)
class _Description:
    """A checked header."""

    monotonic_ns: int
    wall_ns: int
    overrun_before: int
    resolution_ns: int
    lost: dict[str, int]
    server: dict[str, Any]
    names: list[str]
    tables: list[tuple[str, int, list[tuple[str, np.dtype[Any]]]]]

    @classmethod
    def of(cls, header: Any) -> "_Description":
        """Check a header. Raises KeyError, TypeError, ValueError, AttributeError."""
        clock = header["monotonic_ns"], header["wall_ns"], header["overrun_before"], header["resolution_ns"]
        lost, names, server = header["lost"], header["names"], header["server"]
        if not all(type(value) is int and abs(value) < 1 << 63 for value in (*clock, *lost.values())):
            raise ValueError("times and counts must be integers of 64 bits")
        if clock[3] < 1:
            raise ValueError("resolution_ns must be positive")
        if not names or names[0] != "" or not all(isinstance(name, str) for name in names):
            raise ValueError("names must be texts, the first one empty")
        if not isinstance(server, dict):
            raise TypeError("server must be an object")
        tables = []
        for kind, table in header["tables"].items():
            rows = table["rows"]
            if type(rows) is not int or not 0 <= rows <= _MAX_ROWS:
                raise ValueError(f"{kind} cannot have {rows} rows")
            columns = []
            for name, type_ in table["columns"]:
                if type_ not in _TYPES:
                    raise ValueError(f"column {name} of {kind} has the unknown type {type_}")
                columns.append((name, np.dtype(type_)))
            if len({name for name, _ in columns}) != len(columns):
                raise ValueError(f"{kind} has a column twice")
            row_bytes = sum(dtype.itemsize for _, dtype in columns)
            if rows and row_bytes * _MAX_GROWTH < DTYPES.get(kind, np.dtype([])).itemsize:
                raise ValueError(f"{kind} lacks most of its columns")
            tables.append((kind, rows, columns))
        return cls(*clock, lost, server, names, tables)

    @property
    def bytes(self) -> int:
        """The size of all tables."""
        return sum(rows * sum(dtype.itemsize for _, dtype in columns) for _, rows, columns in self.tables)


def _cut_short(size: int, expected: int) -> InvalidRequest:
    what = "cut short" if size < expected else "too long"
    return InvalidRequest(f"the event log is {what}: it has {size} bytes, and its header says {expected}")


def _check(kind: str, table: Table, names: int) -> None:
    """Raise InvalidRequest if a cell refers to a name or a code that is missing."""
    for column in KINDS[kind]:
        bound = names if column.meaning == NAME else len(column.codes) if column.codes else None
        if bound is not None and len(table) and int(table[column.name].max()) >= bound:
            raise InvalidRequest(f"the event log is damaged: column {column.name} of {kind} is out of range")


def _encode(column: Column, values: npt.NDArray[Any], begin: npt.NDArray[Any] | None) -> bytes:
    """Return a column's bytes, those of equal significance together. Exact for times below 2^61."""
    values = np.ascontiguousarray(values)
    if column.meaning in (TIME, NUMBER) and len(values):
        wide = values.astype(np.uint64)
        if column.meaning == TIME and begin is not None:
            distance = (wide - begin.astype(np.uint64)).astype(np.int64)
            # Zigzag, and 0 for times that have not come.
            wide = np.where(wide == 0, 0, ((distance << 1) ^ (distance >> 63)).astype(np.uint64) + np.uint64(1))
        else:
            wide = np.diff(wide, prepend=np.uint64(0))
        values = wide.astype(np.int64)
    return values.view(np.uint8).reshape(len(values), values.itemsize).T.tobytes()


def _decode(
    column: Column, piece: memoryview, dtype: np.dtype[Any], begin: npt.NDArray[Any] | None
) -> npt.NDArray[Any]:
    """Return the values that `_encode` has encoded."""
    planes = np.frombuffer(piece, np.uint8).reshape(dtype.itemsize, len(piece) // dtype.itemsize)
    values: npt.NDArray[Any] = np.ascontiguousarray(planes.T).reshape(-1).view(dtype)
    if column.meaning not in (TIME, NUMBER):
        return values
    wide = values.astype(np.uint64)
    if column.meaning == TIME and begin is not None:
        zigzag = wide - np.uint64(1)
        distance = (zigzag >> np.uint64(1)) ^ (np.uint64(0) - (zigzag & np.uint64(1)))
        return np.where(wide == 0, np.uint64(0), begin.astype(np.uint64) + distance).astype(np.int64)
    return np.cumsum(wide, dtype=np.uint64).astype(np.int64)
