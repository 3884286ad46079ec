"""Where the time in the queue of a model goes: whom a request waits for, and what made the queue long."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

from conch.domain.causes.execution import ExecutionTimes
from conch.domain.causes.log_index import LogIndex
from conch.domain.causes.parts import Interval, TimePart, carve, clipped, joined
from conch.domain.events.layout import INSTANCE_CHANGES, WHY_NOW

_NO_DELAY: Final = tuple(WHY_NOW.index(name) for name in ("single", "idle"))
_DOWN: Final = (INSTANCE_CHANGES.index("down"),)
_QUEUED: Final = ("busy", "ahead")
_IDLE: Final = ("mates", "sequence", "loop")  # waits although an instance is idle
_ORDINARY: Final = ("copy", "compute")
_OF_ALL: Final = ("down", "gc", "loop")  # delays of all instances


class QueueTimes:
    """The parts of times in queues."""

    def __init__(self, index: LogIndex, executions: ExecutionTimes) -> None:
        self._index = index
        self._executions = executions
        self._delays_of: dict[tuple[int, int], list[TimePart]] = {}

    def parts(self, row: Any, batch: Any, start: int, end: int) -> list[TimePart]:
        """Return the parts of a time in the queue of a model."""
        if end <= start:
            return []
        model, name = self._index.batches(row), self._index.name(row["model"])
        preferred = int(batch["instance"]) if batch is not None else -1
        instances = sorted(model.instances, key=lambda number: number != preferred)
        down = {number: model.lasted(number, _DOWN, start, end) for number in instances}
        held = {number: dict[int, tuple[int, Any]]() for number in instances}
        begun, ended = dict[int, list[tuple[int, int, Any]]](), dict[int, list[tuple[int, int]]]()
        for number in instances:
            for first, last, row_of in model.held(number, start, end):
                begun.setdefault(first, []).append((number, last, row_of))
                ended.setdefault(last, []).append((number, int(row_of["number"])))
        times = {
            start,
            end,
            *begun,
            *ended,
            *(time for some in down.values() for interval in some for time in interval),
        }
        parts = list[TimePart]()
        for first, last in pairwise(sorted(times)):
            for number, key in ended.get(first, ()):
                held[number].pop(key, None)
            for number, until, row_of in begun.get(first, ()):
                held[number][int(row_of["number"])] = until, row_of
            blocking, idle = None, not instances
            for number in instances:
                if len(held[number]) >= model.places(number):
                    # The batch that ends first makes room.
                    blocking = blocking or min(held[number].values(), key=lambda item: item[0])
                elif not any(begin <= first < until for begin, until in down[number]):
                    idle = True
                    break
            if idle:
                parts.append(TimePart(self._idle_cause(row, batch), first, last, name))
            elif blocking is None:
                parts.append(TimePart("down", first, last, name))
            else:
                parts += self._behind(row, blocking[1], first, last)
        parts = self._sequence(row, parts, start, end)
        parts = carve(parts, self._index.holds(row, batch, start, end), "limiter", _IDLE)
        parts = joined(self._index.waits_of_loop(parts, ("loop",)))
        return joined(self._roots(row, parts)) if any(part.cause in _QUEUED for part in parts) else parts

    def _idle_cause(self, row: Any, batch: Any) -> str:
        """Return why a request waits although an instance is idle."""
        if row["correlation"]:
            return "sequence"
        return "loop" if batch is None or int(batch["why_now"]) in _NO_DELAY else "mates"

    def _behind(self, row: Any, blocking: Any, start: int, end: int) -> list[TimePart]:
        """Return the parts of a time in which a batch has the instance."""
        cause = "busy" if blocking["started"] < row["queued"] else "ahead"
        run = clipped(self._executions.parts(blocking, None), start, end)
        parts = [part.between(part.start, part.end, cause if part.cause in _ORDINARY else "") for part in run]
        # Its instance takes the next batch when the event loop has seen the end of this one.
        at = parts[-1].end if parts else start
        return [*parts, *([TimePart("loop", at, end, self._index.name(row["model"]))] if end > at else [])]

    def _roots(self, row: Any, parts: list[TimePart]) -> list[TimePart]:
        """Give the end of a wait in the queue to what made the queue longer, as far as it did.

        Without the delays since the queue was last empty, the requests ahead would have left it earlier by these
        delays. A queue that is as long as before a delay is not longer because of it.
        """
        model, queued = self._index.batches(row), int(row["queued"])
        since, ahead = model.waiting_since(queued), max(model.waiting(queued - 1), 1)
        room = whole = sum(part.ns for part in parts if part.cause in _QUEUED)
        for delay in reversed(self._delays(row)):
            first, last = delay.start, min(delay.end, queued)
            if first >= queued or last <= since or room <= 0:
                continue
            grown = 1 - min(model.waiting(first) / ahead, 1)
            share = 1 if delay.cause in _OF_ALL else 1 / max(len(model.instances), 1)
            moved = min(round((last - max(first, 0)) * share), round(whole * grown) - (whole - room), room)
            parts, room = _moved(parts, delay, moved), room - max(moved, 0)
        return parts

    def _delays(self, row: Any) -> list[TimePart]:
        """Return what kept a model's instances from their usual work, in order."""
        key = (int(row["model"]), int(row["version"]))
        if key not in self._delays_of:
            model, name, end = self._index.batches(row), self._index.name(row["model"]), self._index.log.monotonic_ns
            delays = [
                part
                for batch in model.long_ones
                for part in self._executions.parts(batch, None)
                if part.cause not in _ORDINARY
            ]
            down = [model.lasted(number, _DOWN, 0, end) for number in model.instances]
            delays += [TimePart("down", *interval, name) for interval in _common(down)]
            delays += [TimePart("gc", *interval, name) for interval in self._index.pauses(0, end, stalls=False)]
            delays += [TimePart("loop", *interval, name) for interval in self._index.pauses(0, end, stalls=True)]
            self._delays_of[key] = sorted(delays, key=lambda part: part.start)
        return self._delays_of[key]

    def _sequence(self, row: Any, parts: list[TimePart], start: int, end: int) -> list[TimePart]:
        if not row["correlation"]:
            return parts
        others = self._index.by_correlation.rows(int(row["correlation"]))
        before = others[
            (others["number"] < row["number"]) & (others["model"] == row["model"]) & (others["done"] > start)
        ]
        until = min(int(before["done"].max()), end) if len(before) else 0
        return carve(parts, [(start, until)], "sequence", {part.cause for part in parts})


def _moved(parts: Sequence[TimePart], delay: TimePart, ns: int) -> list[TimePart]:
    """Give the last nanoseconds of queueing to a delay."""
    moved = list[TimePart]()
    for part in reversed(parts):
        taken = min(part.ns, max(ns, 0)) if part.cause in _QUEUED else 0
        ns -= taken
        if taken:
            moved.append(TimePart(delay.cause, part.end - taken, part.end, part.model, delay.batch))
        if part.ns > taken:
            moved.append(part.between(part.start, part.end - taken))
    return moved[::-1]


def _common(groups: Sequence[Sequence[Interval]]) -> list[Interval]:
    """Return when there is an interval of each group."""
    common = list(groups[0]) if groups else []
    for group in groups[1:]:
        pairs = ((max(low, start), min(high, end)) for low, high in common for start, end in group)
        common = [(low, high) for low, high in pairs if low < high]
    return common
