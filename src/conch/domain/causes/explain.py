"""Explains requests of an event log: gives each nanosecond between first and last byte a cause."""

from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from conch.domain.causes.cause import NESTED
from conch.domain.causes.execution import ExecutionTimes
from conch.domain.causes.generation import GenerationTimes
from conch.domain.causes.log_index import LogIndex
from conch.domain.causes.parts import RequestParts, Table, TimePart, carve, clipped, joined
from conch.domain.causes.queueing import QueueTimes
from conch.domain.events.layout import OUTCOMES
from conch.domain.events.log import EventLog

_MAX_DEPTH: Final = 20
# Causes of what the event loop does or should do: a collection of garbage there delays it.
_ON_LOOP: Final = ("serialisation", "loop", "copy")


class Explainer:
    """Finds the parts of requests."""

    def __init__(self, log: EventLog) -> None:
        self.log = log
        self._index = index = LogIndex(log)
        self._executions = ExecutionTimes(index)
        self._queues = QueueTimes(index, self._executions)
        self._generations = GenerationTimes(index)

    def explain(self, number: int) -> RequestParts | None:
        """Return the parts of a request, None if the log has no such request."""
        rows = self._index.by_number.rows(number)
        return self._whole(rows[0]) if len(rows) else None

    def batch(self, number: int) -> tuple[Any, Table] | None:
        """Return a batch and its requests, None if the log has no such batch."""
        rows = self._index.by_batch_number.rows(number)
        return (rows[0], self._index.members.rows(number)) if len(rows) else None

    def root(self, number: int) -> int:
        """Return the number of the client's request on whose behalf a request was made."""
        for _ in range(_MAX_DEPTH):
            rows = self._index.by_number.rows(number)
            if not len(rows) or not (parent := int(rows[0]["parent"])):
                break
            number = parent
        return number

    def whole_ns(self) -> Table:
        """Return how long each request took, with its client's call where the log has it; 0 for one without an end."""
        requests, exchanges = self.log.requests, self.log.exchanges
        start, end = requests["received"], requests["done"]
        if len(exchanges):
            order = np.argsort(exchanges["number"], kind="stable")
            calls = exchanges[order]
            places = np.minimum(np.searchsorted(calls["number"], requests["exchange"]), len(calls) - 1)
            calls = calls[places]
            known = (calls["number"] == requests["exchange"]) & (requests["parent"] == 0)
            written = np.maximum(calls["drained"], calls["written"])
            start = np.where(known & (calls["first_byte"] > 0), calls["first_byte"], start)
            end = np.where(known & (end > 0), np.maximum(written, end), end)
        return np.where(end > 0, end - start, 0)

    def usual_ns(self, batch: Any) -> int:
        """Return the computing time that is usual for batches of such a size, 0 if unknown."""
        usual = self._index.batches(batch).usual(batch)
        return usual.for_kind or usual.for_size

    def _whole(self, row: Any) -> RequestParts:
        end = self._index.end_of(row)
        calls = self._index.by_exchange.rows(int(row["exchange"]) or -1)
        if not len(calls):
            return self._request(row, int(row["received"]), end, 0)
        call = calls[0]
        queued = int(row["queued"] or row["done"] or end)
        parts = [
            *self._index.stages(row, [
                ("", int(call["first_byte"] or call["received"] or row["received"])),
                ("client_send", int(call["received"])), ("client_send", int(call["body_done"])),
                ("serialisation", int(call["decoded"])), ("serialisation", queued),
            ]),
            *self._request(row, queued, end, 0).parts,
            *self._index.stages(row, [
                ("", end), ("serialisation", int(call["answered"])), ("serialisation", int(call["encoded"])),
                ("serialisation", int(call["written"])), ("client_read", int(call["drained"])),
            ]),
        ]  # fmt: skip
        return self._parts(row, parts)

    def _request(self, row: Any, start: int, end: int, depth: int) -> RequestParts:
        """Return the parts between two times, without those of the client's call."""
        queued, done = int(row["queued"] or row["done"] or end), self._index.end_of(row)
        parts = self._index.stages(row, [("", int(row["received"])), ("serialisation", queued)])
        children = self._index.by_parent.rows(int(row["number"]) if depth < _MAX_DEPTH else -1)
        batches = self._index.by_batch_number.rows(int(row["batch"]) or -1)
        if len(batches):
            parts += self._executed(row, batches[0], children, done, depth)
        elif len(children):
            parts += self._chain(self._index.stages(row, [("", queued), ("loop", done)]), children, depth)
        elif row["batch"]:
            parts += self._index.stages(row, [("", queued), ("unrecorded", done)])
        elif row["first_token"] or row["completion_tokens"]:
            parts += self._generations.parts(row, queued, done)
        elif OUTCOMES[row["outcome"]] == "ok":  # of the response cache, or without an execution
            parts += self._index.stages(row, [("", queued), ("serialisation", done)])
        else:
            parts += self._queues.parts(row, None, queued, done)
        return self._parts(row, clipped(parts, start, end))

    def _executed(self, row: Any, batch: Any, children: Table, done: int, depth: int) -> list[TimePart]:
        queued, started = int(row["queued"]), min(int(batch["started"]) or done, done)
        parts = self._queues.parts(row, batch, queued, max(started, queued))
        own = clipped(self._executions.parts(batch, row), max(started, queued), done)
        returned = min(int(batch["infer_done"] or batch["released"]) or done, done)  # one that failed is only released
        if len(children):
            own = [
                part if part.cause in ("copy", "gc") else part.between(part.start, part.end, "compute") for part in own
            ]
            own = self._chain(joined(own), children, depth)
        parts += own
        back = self._index.stages(row, [("", max(returned, started, queued)), ("copy", done)])
        return parts + self._index.waits_of_loop(back, ("copy",))

    def _chain(self, parts: list[TimePart], children: Table, depth: int) -> list[TimePart]:
        """Replace the critical path of nested requests in parts: from the end back, what ended last before."""
        if not parts:
            return parts
        low, at = parts[0].start, parts[-1].end
        nested = list[TimePart]()
        spans = [(int(child["received"]), self._index.end_of(child), child) for child in children]
        while at > low and (spans := [span for span in spans if span[0] < at and span[1] > low]):
            place = max(range(len(spans)), key=lambda place: (min(spans[place][1], at), -spans[place][0]))
            start, end, child = spans.pop(place)
            step = self._request(child, max(start, low), min(end, at), depth + 1)
            if step.ns:
                nested.append(TimePart(NESTED, step.start, step.end, step.model, int(child["batch"]), step))
            at = min(max(start, low), at)
        chain, rest = list[TimePart](), parts
        for part in reversed(nested):
            chain += [*clipped(rest, low, part.start), part]
            low = part.end
        return chain + clipped(rest, low, parts[-1].end)

    def _parts(self, row: Any, parts: Iterable[TimePart]) -> RequestParts:
        """Return parts as a whole, with collections of garbage and missing processors where the event loop worked."""
        some = list(parts)
        start, end = (some[0].start, some[-1].end) if some else (int(row["received"]), int(row["received"]))
        some = carve(some, self._index.pauses(start, end, stalls=False), "gc", _ON_LOOP)
        waits = [(first, first + waited) for first, _, waited in self._index.stalls(start, end)]
        some = carve(some, waits, "cpu", ("serialisation",))
        return RequestParts(row, self._index.name(row["model"]), start, end, joined(some))
