"""Look-ups in the tables of an event log: nested requests, members of batches, pauses of the event loop."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np

from conch.domain.causes.model_batches import ModelBatches
from conch.domain.causes.parts import Interval, Table, TimePart, carve
from conch.domain.events.layout import CHANGES, PAUSES
from conch.domain.events.log import EventLog

_STALL: Final = PAUSES.index("stall")


class Groups:
    """Rows of a table by the value of a column."""

    def __init__(self, table: Table, column: str) -> None:
        self._table = table
        self._order = np.argsort(table[column], kind="stable")
        self._values = table[column][self._order]

    def rows(self, value: int) -> Table:
        """Return the rows with a value, in the order of the table."""
        first, last = np.searchsorted(self._values, [value, value + 1])
        return self._table[self._order[first:last]]


class LogIndex:
    """An event log's rows by what they belong to. Tables are sorted when they are first needed."""

    def __init__(self, log: EventLog) -> None:
        self.log = log
        self._batches_of: dict[tuple[int, int], ModelBatches] = {}

    @cached_property
    def by_number(self) -> Groups:
        """Requests by their numbers."""
        return Groups(self.log.requests, "number")

    @cached_property
    def by_parent(self) -> Groups:
        """Nested requests by the number of the one that made them."""
        return Groups(self.log.requests, "parent")

    @cached_property
    def by_correlation(self) -> Groups:
        """Requests by their sequence."""
        return Groups(self.log.requests, "correlation")

    @cached_property
    def by_exchange(self) -> Groups:
        """Clients' calls by their numbers."""
        return Groups(self.log.exchanges, "number")

    @cached_property
    def by_batch_number(self) -> Groups:
        """Batches by their numbers."""
        return Groups(self.log.batches, "number")

    @cached_property
    def members(self) -> Groups:
        """Requests by the number of their batch."""
        return Groups(self.log.requests, "batch")

    def name(self, number: int) -> str:
        """Return the name that a cell refers to."""
        return self.log.names[int(number)]

    def end_of(self, row: Any) -> int:
        """Return when a request ended: now, if it has not."""
        return int(row["done"] or self.log.monotonic_ns)

    def batches(self, row: Any) -> ModelBatches:
        """Return the batches of the model version of a row."""
        key = (int(row["model"]), int(row["version"]))
        if key not in self._batches_of:
            batches, requests, instances = (
                table[(table["model"] == key[0]) & (table["version"] == key[1])]
                for table in (self.log.batches, self.log.requests, self.log.instances)
            )
            self._batches_of[key] = ModelBatches(
                batches[batches["started"] > 0], requests, instances, self.log.monotonic_ns
            )
        return self._batches_of[key]

    def steps(self, row: Any) -> Table:
        """Return the steps of the engine of a row's model."""
        steps: Table = self.log.steps[self.log.steps["model"] == row["model"]]
        return steps

    def pauses(self, start: int, end: int, *, stalls: bool) -> list[Interval]:
        """Return the collections of garbage, or the stalls, that overlap a time."""
        return [
            (int(row["started"]), int(row["ended"]))
            for row in self._overlapping(self._all_pauses, start, end)
            if (int(row["kind"]) == _STALL) == stalls
        ]

    def stalls(self, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield start, end and time without a processor of the stalls that overlap a time."""
        for row in self._overlapping(self._all_pauses, start, end):
            if int(row["kind"]) == _STALL:
                first, last = int(row["started"]), int(row["ended"])
                yield first, last, min(max(int(row["cpu_wait_ns"]), 0), last - first)

    def loadings(self, start: int, end: int) -> list[Interval]:
        """Return the loads of models that overlap a time."""
        return [(int(row["started"]), int(row["ended"])) for row in self._overlapping(self._loads, start, end)]

    def holds(self, row: Any, batch: Any, start: int, end: int) -> list[Interval]:
        """Return when the rate limiter kept a model from a batch; for a sequence, its instance."""
        rows = self._overlapping(self._all_holds, start, end)
        rows = rows[(rows["model"] == row["model"]) & (rows["version"] == row["version"])]
        if row["correlation"] and batch is not None:
            rows = rows[rows["instance"] == batch["instance"]]
        return [(int(hold["started"]), int(hold["ended"])) for hold in rows]

    def stages(self, row: Any, times: Sequence[tuple[str, int]]) -> list[TimePart]:
        """Return parts that end at times, of which the first is the start; those that have not come are left out."""
        model, parts, at = self.name(row["model"]), list[TimePart](), times[0][1]
        for cause, time in times[1:]:
            if time > at:
                parts.append(TimePart(cause, at, time, model, int(row["batch"])))
                at = time
        return parts

    def waits_of_loop(self, parts: list[TimePart], causes: Sequence[str]) -> list[TimePart]:
        """Replace waits for the event loop by collections of garbage, missing processors and stalls in them."""
        if not parts:
            return parts
        start, end = parts[0].start, parts[-1].end
        parts = carve(parts, self.pauses(start, end, stalls=False), "gc", causes)
        for first, last, waited in self.stalls(start, end):
            parts = carve(parts, [(first, first + waited)], "cpu", causes)
            parts = carve(parts, [(first + waited, last)], "loop", causes)
        return carve(parts, self.loadings(start, end), "loading", ("cpu", "loop"))

    @cached_property
    def _all_pauses(self) -> Table:
        return _by_end(self.log.pauses)

    @cached_property
    def _loads(self) -> Table:
        changes = self.log.changes
        return _by_end(changes[np.isin(changes["change"], [CHANGES.index("load"), CHANGES.index("reload")])])

    @cached_property
    def _all_holds(self) -> Table:
        holds = self.log.holds.copy()
        holds["ended"][holds["ended"] == 0] = self.log.monotonic_ns
        return _by_end(holds)

    @staticmethod
    def _overlapping(table: Table, start: int, end: int) -> Table:
        """Return the rows, in the order of their ends, that overlap a time."""
        rest = table[np.searchsorted(table["ended"], start, "right") :]
        return rest[rest["started"] < end]


def _by_end(table: Table) -> Table:
    """Return rows in the order of their ends: a stall is noticed after collections of garbage in it."""
    rows: Table = table[np.argsort(table["ended"], kind="stable")]
    return rows
