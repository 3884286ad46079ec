"""Reading the event log of this server: the rows of the recorder, and of what has not ended."""

import asyncio
import os
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from operator import attrgetter
from time import monotonic_ns, time_ns
from typing import Any

import numpy as np

from conch import __version__
from conch.base.build_info import is_compiled
from conch.domain.events.layout import CODE, KINDS, NAME, TIME
from conch.domain.events.log import EventLog, NameTable, table_of
from conch.domain.events.packing import Table
from conch.domain.events.rows import ExchangeRow, RequestRow, Ring, Row
from conch.domain.exposition import Family, Point
from conch.machine.cores import usable_cores
from conch.server.observability.event_log import EventRecorder

# Rows that are read before the event loop runs other callbacks: about a millisecond.
_SLICE_ROWS = 400

# Returns the cells of a row.
_CELLS = {kind: attrgetter(*[column.name for column in columns]) for kind, columns in KINDS.items()}
_TIMES = {kind: [column.name for column in columns if column.meaning == TIME] for kind, columns in KINDS.items()}

Unfinished = Callable[[], Iterable[tuple[str, Row]]]
Documents = Callable[[], Mapping[str, Any]]


class EventReader:
    """Makes an `EventLog` of the recorder's rows and those that `unfinished` yields: (kind, row).

    `models` returns the configurations of the served models by name, for the log's header. All methods belong to the
    event loop's thread.
    """

    def __init__(
        self, recorder: EventRecorder, unfinished: Unfinished = tuple, models: Documents = dict[str, Any]
    ) -> None:
        self._recorder = recorder
        self._unfinished = unfinished
        self._models = models

    def read(self, last_s: float) -> EventLog:
        """Return the rows of what has ended in the last `last_s` seconds, or has not ended, at once.

        For short times: the event loop waits for some 3 µs a row.
        """
        reading = _Reading(self._recorder, last_s, self._unfinished())
        for _ in reading.slices():
            pass
        return reading.log(self._models())

    async def read_in_slices(self, last_s: float, pause_s: float = 0.0) -> EventLog:
        """Return the same; the event loop runs other callbacks between slices of about a millisecond.

        `pause_s` is how long at least.
        """
        reading = _Reading(self._recorder, last_s, self._unfinished())
        for _ in reading.slices():
            await asyncio.sleep(pause_s)
        return await asyncio.to_thread(reading.log, self._models())

    async def read_bytes(self, last_s: float) -> bytes:
        """Return the file form of the same, which a thread makes."""
        log = await self.read_in_slices(last_s)
        return await asyncio.to_thread(log.to_bytes)


class _Reading:
    """One reading, of the rows that are there when it begins. Rows that are overwritten meanwhile are missing."""

    def __init__(self, recorder: EventRecorder, last_s: float, unfinished: Iterable[tuple[str, Row]]) -> None:
        self._recorder = recorder
        self._now, self._wall = monotonic_ns(), time_ns()
        self._since = max(self._now - int(last_s * 1e9), 0)
        self._overrun = 0
        self._names = NameTable()
        self._ids: list[tuple[int, str]] = []  # of requests by number
        self._exchange_ids: dict[int, str] = {}  # of exchanges by number
        # What has been copied, by kind and column: numbers in compact form, and references to texts.
        self._columns: dict[str, list[array[int] | list[str]]] = {
            kind: [[] if column.meaning in (NAME, CODE) else array("q") for column in columns]
            for kind, columns in KINDS.items()
        }
        self._ends = {kind: ring.written for kind, ring in recorder.rings.items()}
        live: dict[str, list[Row]] = {}
        for kind, row in unfinished if recorder.on else ():
            live.setdefault(kind, []).append(row)
        self._live = live

    def slices(self) -> Iterator[None]:
        """Read one slice after another."""
        for kind, ring in self._recorder.rings.items():
            end = self._ends[kind]
            start = bisect_left(range(end), self._since, lo=ring.lost, key=partial(_ended, kind, ring))
            while start < end:
                rows = [ring.row(number) for number in range(start, min(start + _SLICE_ROWS, end))]
                self._read(kind, [row for row in rows if row is not None])
                start += _SLICE_ROWS
                yield
            if ring.lost:
                self._overrun = max(self._overrun, _ended(kind, ring, ring.lost))
        for kind, live in self._live.items():
            for start in range(0, len(live), _SLICE_ROWS):
                self._read(kind, live[start : start + _SLICE_ROWS])
                yield

    def _read(self, kind: str, rows: list[Row]) -> None:
        cells = zip(*map(_CELLS[kind], rows), strict=True)
        for column, values in zip(self._columns[kind], cells, strict=False):
            if isinstance(column, list):
                column.extend(values)
            else:
                column += _numbers(values)
        for row in rows:
            if isinstance(row, RequestRow) and row.id and not row.parent:  # steps of ensembles have its id, too
                self._ids.append((row.number, row.id))
            elif isinstance(row, ExchangeRow) and row.id:
                self._exchange_ids[row.number] = row.id

    def log(self, models: Mapping[str, Any]) -> EventLog:
        """Return the log, when all slices have been read. In any thread."""
        tables = {kind: table_of(kind, columns, self._names) for kind, columns in self._columns.items()}
        _link_steps(tables["steps"], tables["requests"])
        calls = tables["exchanges"]
        _link(calls, tables["requests"])
        for number, request in zip(calls["number"].tolist(), calls["request"].tolist(), strict=True):
            if request and number in self._exchange_ids:
                self._ids += ((request, text) for text in self._exchange_ids[number].split(" "))
        tables["ids"] = table_of("ids", list(zip(*self._ids, strict=True)) or [(), ()], self._names)
        server = {
            "conch": __version__,
            "compiled": is_compiled(),
            "cores": usable_cores(),
            "pid": os.getpid(),
            "since": self._since,
            "models": {name: document for name, document in models.items() if name in self._names.texts},
        }
        lost = {kind: ring.lost for kind, ring in self._recorder.rings.items() if ring.lost}
        overrun = self._overrun if self._overrun > self._since else 0
        return EventLog(self._now, self._wall, overrun, lost, server, self._names.texts, tables)


def _numbers(values: tuple[int, ...]) -> "array[int]":
    try:
        return array("q", values)
    except OverflowError:
        return array("q", [min(max(value, -(2**63)), 2**63 - 1) for value in values])


def log_families(recorder: EventRecorder) -> Iterator[Family]:
    """Yield how many rows have been written and overwritten; nothing without a log."""
    if recorder.on:
        rings = recorder.rings.items()
        written = [Point(ring.written, {"kind": kind}) for kind, ring in rings]
        yield Family.of("conch_event_log_rows_total", written)
        lost = [Point(ring.lost, {"kind": kind}) for kind, ring in rings]
        yield Family.of("conch_event_log_overwritten_total", lost)


def _link(exchanges: Table, requests: Table) -> None:
    """Add to exchanges what their requests know: the number of the first, and when they were decoded and answered."""
    own = requests[(requests["parent"] == 0) & (requests["exchange"] > 0)]
    own = own[np.lexsort((own["number"], own["exchange"]))]
    numbers, first = np.unique(own["exchange"], return_index=True)
    if not len(first):
        return
    done = np.maximum.reduceat(own["done"], first)
    place = np.minimum(np.searchsorted(numbers, exchanges["number"]), len(numbers) - 1)
    known = numbers[place] == exchanges["number"]
    place = place[known]
    exchanges["request"][known] = own["number"][first[place]]
    exchanges["decoded"][known] = own["queued"][first[place]]
    exchanges["answered"][known] = done[place]


def _link_steps(steps: Table, requests: Table) -> None:
    """Add to steps the tokens of the prompts that they ended, which requests know."""
    for model in np.unique(steps["model"]):
        places = np.flatnonzero(steps["model"] == model)
        own = requests[(requests["model"] == model) & (requests["prompt_tokens"] > 0) & (requests["first_token"] > 0)]
        at = np.searchsorted(steps["ended"][places], own["first_token"], "right") - 1
        np.add.at(steps["prefill_tokens"], places[at[at >= 0]], own["prompt_tokens"][at >= 0])


def _ended(kind: str, ring: Ring, number: int) -> int:
    """Return when the thing of a row ended; 0 for one that has been overwritten."""
    row = ring.row(number)
    return 0 if row is None else max(getattr(row, name) for name in _TIMES[kind])
