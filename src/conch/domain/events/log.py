"""A read event log: numpy tables with the columns of `layout`, and their form as a file.

The file form is a line with the format, a JSON header, the tables as `packing` makes them, and ids of requests as
`id_packing` does, so that they compress well.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray

from conch.base.errors import InvalidRequest, NotFound
from conch.domain.events.layout import DTYPES, FORMAT, KINDS, NAME, TIME
from conch.domain.events.packing import (
    MAX_TABLE_BYTES,
    RowLink,
    Table,
    expanded_bytes,
    pack,
    pack_ids,
    packed_bytes,
    packed_id_bytes,
    unpack,
    unpack_ids,
)

Cell: TypeAlias = int | str

_MAGIC: Final = b"conch events "
_FIRST_LINE: Final = re.compile(rb"conch events (\d{1,9}) (\d{1,12})\n")
_MAX_FIRST_LINE_BYTES: Final = 40
# The id in an answer of the OpenAI API and its relatives: that of the call behind the kind of the answer.
_ANSWER_ID: Final = re.compile(r"(?:chatcmpl-|cmpl-|msg_)(.+)")
# Rows of these kinds are packed with the rows that they refer to: column, and kind of the other row.
_LINKS: Final = {"requests": ("batch", "batches"), "exchanges": ("request", "requests")}
_MAX_VALUE: Final = 1 << 62  # of times and counts: their differences are integers of 64 bits, too
_ANY_VALUE: Final = ("correlation", "deadline", "version")  # a hash, what a client asks for, and -1 for none
_MAX_CORES: Final = 1 << 16


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
    def holds(self) -> Table:
        """One row for each time in which the rate limiter kept a model from a batch."""
        return self.tables["holds"]

    @property
    def changes(self) -> Table:
        """One row for each load, unload and change of limits."""
        return self.tables["changes"]

    def wall(self, time: int) -> int:
        """Return the Unix time in ns of a time in the log, by the wall clock of when the log was read."""
        return self.wall_ns + int(time) - self.monotonic_ns

    def call_times(self, requests: Table) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return when the calls of requests began and ended: first byte and last write, where the log has the call."""
        began, ended = requests["received"].astype(np.int64), requests["done"].astype(np.int64)
        calls = np.sort(self.exchanges, order="number")
        if not len(calls):
            return began, ended
        call = calls[np.minimum(np.searchsorted(calls["number"], requests["exchange"]), len(calls) - 1)]
        known = (call["number"] == requests["exchange"]) & (requests["exchange"] > 0) & (requests["parent"] == 0)
        first = np.where(call["first_byte"] > 0, call["first_byte"], call["received"])
        last = np.max([call["drained"], call["written"], call["encoded"]], axis=0)
        return (
            np.where(known & (first > 0), np.minimum(first, began), began),
            np.where(known & (ended > 0), np.maximum(last, ended), ended),
        )

    def checked(self) -> "EventLog":
        """Return it. Raises InvalidRequest if it is not one that a server writes, and so may not be computed with."""
        for kind, table in self.tables.items():
            for column in KINDS[kind]:
                values = table[column.name]
                if len(table) and column.name not in _ANY_VALUE and (values.min() < 0 or values.max() >= _MAX_VALUE):
                    raise InvalidRequest(f"the event log is damaged: column {column.name} of {kind} is out of range")
        numbers, parents = self.requests["number"], self.requests["parent"]
        if len(np.unique(numbers)) < len(numbers) or np.any(numbers <= parents):
            raise InvalidRequest("the event log is damaged: requests share a number, or are made before their parents")
        return self

    def find(self, text: str) -> int:
        """Return the number of the newest request with an id: `#number`, its id, X-Request-Id or trace id.

        The id in an answer of the OpenAI API is one, too. Raises NotFound.
        """
        of_answer = _ANSWER_ID.fullmatch(text)
        if of_answer is not None and text not in self.names:
            text = of_answer[1]
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
        tables = {
            kind: table_of(kind, [[row.get(column.name, 0) for row in given] for column in KINDS[kind]], names)
            for kind, given in rows.items()
        }
        return cls(names=names.texts, tables=tables, **header)

    def to_bytes(self, resolution_ns: int = 1) -> bytes:
        """Return the file form. A coarser resolution of times makes it smaller when it is compressed."""
        packed: dict[str, dict[str, Any]] = {}
        parts: list[bytes] = []
        tables = dict[str, Table]()
        for kind in sorted(self.tables, key=lambda kind: (kind in _LINKS, kind == "exchanges")):
            table = tables[kind] = self.tables[kind] if resolution_ns == 1 else self.tables[kind].copy()
            for column in KINDS[kind] if resolution_ns != 1 else ():
                if column.meaning == TIME:
                    table[column.name] //= resolution_ns
            link = _LINKS.get(kind)
            description, data = pack(table, RowLink(link[0], tables[link[1]]) if link else None)
            packed[kind] = {**description, "link": link}
            parts.append(data)
        names, ids = pack_ids(self.names)
        header = orjson.dumps(
            {
                "monotonic_ns": self.monotonic_ns,
                "wall_ns": self.wall_ns,
                "overrun_before": self.overrun_before,
                "resolution_ns": resolution_ns,
                "lost": dict(self.lost),
                "server": dict(self.server),
                "names": names,
                "tables": packed,
            }
        )
        return b"".join([b"%b%d %d\n" % (_MAGIC, FORMAT, len(header)), header, *parts, ids])

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
        try:
            ids_start = end - described.id_bytes
            names = unpack_ids(described.names, data[ids_start:])
            unpacked = _unpacked(described.tables, data[start:ids_start])
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidRequest(f"the event log is damaged: {error}") from None
        tables: dict[str, Table] = {}
        for kind in unpacked.keys() & KINDS.keys():
            table = tables[kind] = np.zeros(len(unpacked[kind]), DTYPES[kind])
            for column in KINDS[kind]:
                if column.name in (unpacked[kind].dtype.names or ()):
                    scale = described.resolution_ns if column.meaning == TIME else 1
                    table[column.name] = unpacked[kind][column.name] * scale
            _check(kind, table, len(names))
        return cls(
            described.monotonic_ns,
            described.wall_ns,
            described.overrun_before,
            described.lost,
            described.server,
            names,
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


def table_of(kind: str, columns: Iterable[Sequence[Cell]], names: NameTable) -> Table:
    """Return the table of columns in the order of the layout, each number within the range of its type."""
    table: Table | None = None
    for column, given in zip(KINDS[kind], columns, strict=True):
        if table is None:
            table = np.zeros(len(given), DTYPES[kind])
        values: Sequence[Any] = given
        if column.meaning == NAME:
            values = [names.number(value) if isinstance(value, str) else value for value in given]
        elif column.codes:
            values = [column.codes.index(value) if isinstance(value, str) else value for value in given]
        limits = np.iinfo(column.type)
        try:
            table[column.name] = np.clip(np.array(values, np.int64), max(limits.min, -(2**63)), limits.max)
        except OverflowError:
            table[column.name] = [min(max(value, limits.min), limits.max) for value in values]
    assert table is not None  # each kind has columns
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
    names: list[str | int]
    tables: dict[str, dict[str, Any]]
    bytes: int  # of all tables and ids
    id_bytes: int

    @classmethod
    def of(cls, header: Any) -> "_Description":
        """Check a header. Raises KeyError, TypeError, ValueError, AttributeError."""
        clock = header["monotonic_ns"], header["wall_ns"], header["overrun_before"], header["resolution_ns"]
        lost, names, server = header["lost"], header["names"], header["server"]
        if not all(type(value) is int and abs(value) < 1 << 63 for value in (*clock, *lost.values())):
            raise ValueError("times and counts must be integers of 64 bits")
        if clock[3] < 1:
            raise ValueError("resolution_ns must be positive")
        if not names or names[0] != "":
            raise ValueError("names must begin with an empty one")
        id_bytes = packed_id_bytes(names)
        if not isinstance(server, dict):
            raise TypeError("server must be an object")
        models, cores = server.get("models", {}), server.get("cores", 0)
        if not isinstance(models, dict) or not all(isinstance(config, dict) for config in models.values()):
            raise TypeError("the configurations of the server must be objects by name")
        if not isinstance(cores, int | float) or not 0 <= cores <= _MAX_CORES:
            raise ValueError("the server's number of cores is not valid")
        tables: dict[str, dict[str, Any]] = header["tables"]
        sizes = [packed_bytes(table) for table in tables.values()]
        if sum(map(expanded_bytes, tables.values())) > MAX_TABLE_BYTES:
            raise ValueError("it expands to more than 1 GiB")
        return cls(*clock, lost, server, names, tables, sum(sizes) + id_bytes, id_bytes)


def _unpacked(descriptions: Mapping[str, Mapping[str, Any]], data: memoryview) -> dict[str, Table]:
    """Return the tables, with columns of newer versions. Raises KeyError, TypeError, ValueError."""
    tables: dict[str, Table] = {}
    start = 0
    for kind, description in descriptions.items():
        end = start + packed_bytes(description)
        link = description["link"]
        tables[kind] = unpack(description, data[start:end], RowLink(str(link[0]), tables[link[1]]) if link else None)
        start = end
    return tables


def _cut_short(size: int, expected: int) -> InvalidRequest:
    what = "cut short" if size < expected else "too long"
    return InvalidRequest(f"the event log is {what}: it has {size} bytes, and its header says {expected}")


def _check(kind: str, table: Table, names: int) -> None:
    """Raise InvalidRequest if a cell refers to a name or a code that is missing."""
    for column in KINDS[kind]:
        bound = names if column.meaning == NAME else len(column.codes) if column.codes else None
        if bound is not None and len(table) and int(table[column.name].max()) >= bound:
            raise InvalidRequest(f"the event log is damaged: column {column.name} of {kind} is out of range")
