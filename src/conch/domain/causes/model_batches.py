"""The batches of one model version: what its instances held and when, its queue, and usual computing times."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np

from conch.domain.causes.parts import Interval, Table

_MIN_SAMPLES: Final = 4  # of a size before its median is what is usual
# Within which the server sees that a process is stopped: every 200 ms, when it can.
LOOK_NS: Final = 400_000_000

_LONG: Final = 2.0  # times the median: a batch that may be why a queue has grown
_LARGE: Final = 2.0  # times the usual bytes of a request


class Usual(NamedTuple):
    """Computing times (ns), without the wait for a processor, that are usual for a batch.

    `for_kind` is that of its size, shapes and about as many bytes, 0 if too few are known; `for_size` is that of its
    size with any inputs.
    """

    for_kind: int
    for_size: int
    cpu_wait: int  # what batches of its size usually wait for a processor
    is_large: bool  # its inputs have far more bytes than usual


class ModelBatches:
    """The batches of one model version."""

    def __init__(self, batches: Table, requests: Table, instances: Table, end: int) -> None:
        self._batches = batches = batches[np.argsort(batches["started"], kind="stable")]
        self._requests = requests
        self._end = end
        self.instances: Sequence[int] = sorted({*batches["instance"].tolist(), *instances["instance"].tolist()})
        self._held = {number: self._held_by(batches[batches["instance"] == number]) for number in self.instances}
        self._changes = {number: instances[instances["instance"] == number] for number in self.instances}

    @property
    def long_ones(self) -> Table:
        """The batches that took far longer than the median."""
        ends = np.where(self._batches["infer_done"] > 0, self._batches["infer_done"], self._end)
        times = ends - self._batches["started"]
        return self._batches[times > _LONG * np.median(times)] if len(times) else self._batches

    def waiting(self, time: int) -> int:
        """Return how many requests waited in the queue at a time."""
        entered, left, _ = self._queue
        return int(np.searchsorted(entered, time, "right")) - int(np.searchsorted(left, time, "right"))

    def waiting_since(self, time: int) -> int:
        """Return since when the queue had not been empty at a time."""
        empty = self._queue[2]
        place = int(np.searchsorted(empty, time))
        return int(empty[place - 1]) if place else 0

    @cached_property
    def _queue(self) -> tuple[Table, Table, Table]:
        """When requests entered the queue, when they left it, and when that left it empty."""
        rows = self._requests[self._requests["queued"] > 0]
        ends = np.where(rows["done"] > 0, rows["done"], self._end)
        entered, left = np.sort(rows["queued"]), np.sort(np.where(rows["started"] > 0, rows["started"], ends))
        emptied = np.searchsorted(entered, left, "right") == np.arange(1, len(left) + 1)
        return entered, left, left[emptied]

    def held(self, instance: int, start: int, end: int) -> list[tuple[int, int, Any]]:
        """Return (from, to, batch) for the batches that an instance holds between two times, in order."""
        rows, ends, longest, _ = self._held[instance]
        first, last = np.searchsorted(rows["started"], [start - longest, end])
        return [
            (max(int(rows[place]["started"]), start), min(int(ends[place]), end), rows[place])
            for place in range(first, last)
            if ends[place] > start
        ]

    def places(self, instance: int) -> int:
        """Return how many batches an instance has been seen to execute at once."""
        return self._held[instance].places

    def _held_by(self, rows: Table) -> "_Held":
        """Return the batches of an instance, with their ends: when it was free again, or now."""
        ends = np.where(
            rows["released"] > 0, rows["released"], np.where(rows["infer_done"] > 0, rows["infer_done"], self._end)
        )
        # A batch that was sent ahead starts when the one before it has been computed, a little before its release.
        computed = np.where(rows["infer_done"] > 0, rows["infer_done"], ends)
        middles = (rows["started"] + computed) // 2
        at_once = np.searchsorted(rows["started"], middles, "right") - np.searchsorted(
            np.sort(computed), middles, "right"
        )
        longest = int((ends - rows["started"]).max(initial=0))
        return _Held(rows, ends, longest, int(at_once.max(initial=1)))

    def lasted(self, instance: int, begin: Sequence[int], start: int, end: int) -> list[Interval]:
        """Return when an instance was, between two times, in a state that the changes `begin` begin."""
        intervals, since = list[Interval](), 0
        for row in self._changes[instance]:
            at = int(row["time"])
            if int(row["change"]) in begin:
                since = since or at
            elif since:
                intervals.append((since, at))
                since = 0
        if since:
            intervals.append((since, self._end))
        return [(max(first, start), min(last, end)) for first, last in intervals if first < end and last > start]

    def stalls(self, instance: int, begin: int, start: int, end: int) -> list[Interval]:
        """Return when an instance made no progress, of the times from a change `begin` within `start` and `end` on.

        The server does not record that it resumes: what it worked at has ended then.
        """
        rows = self._changes[instance]
        times = rows["time"][(rows["change"] == begin) & (rows["time"] >= start) & (rows["time"] < end)]
        return [(int(time), end) for time in times]

    def usual(self, batch: Any) -> Usual:
        """Return what is usual for a batch. A size with too few samples counts as the one next to it."""
        known = self._known
        place = int(np.searchsorted(known.numbers, batch["number"]))
        is_known = place < len(known.numbers) and known.numbers[place] == batch["number"]
        size = int(batch["size"])
        shape, size_bytes = (int(known.shapes[place]), float(known.bytes_each[place])) if is_known else (0, 0.0)
        nearest = min(sorted(known.of_size), key=lambda other: abs(other - size), default=0)
        for_size = known.of_size.get(nearest, known.of_all)
        return Usual(
            known.of_kind.get((size, shape, int(_magnitude(size_bytes))), 0),
            for_size,
            known.cpu_wait.get(nearest, 0),
            size_bytes > _LARGE * known.usual_bytes > 0,
        )

    @cached_property
    def _known(self) -> "_Known":
        by_number = self._batches[np.argsort(self._batches["number"], kind="stable")]
        numbers = by_number["number"]
        inside = self._requests[np.isin(self._requests["batch"], numbers)]
        inside = inside[np.argsort(inside["batch"], kind="stable")]
        _, first = np.unique(inside["batch"], return_index=True)
        places = np.searchsorted(numbers, inside["batch"][first])
        shapes, sums = np.zeros(len(numbers), np.uint64), np.zeros(len(numbers))
        if len(first):
            shapes[places] = inside["shape"][first]
            sums[places] = np.add.reduceat(inside["input_bytes"].astype(np.float64), first)
        request_bytes = sums / np.maximum(by_number["size"], 1)
        whole = (by_number["infer_done"] > 0) & (by_number["failed"] == 0)
        times = by_number["infer_done"].astype(np.int64) - by_number["input_done"].astype(np.int64)
        waits = by_number["cpu_wait_ns"].astype(np.int64)
        # A thread does not wait while it runs: the rest was before it had the inputs.
        waits = np.minimum(waits, np.maximum(times - by_number["cpu_ns"].astype(np.int64), 0))
        times, waits = np.maximum(times - waits, 0)[whole], waits[whole]
        columns = (by_number["size"], shapes, _magnitude(request_bytes).astype(int))
        kinds = list(zip(*(column[whole].tolist() for column in columns), strict=True))
        return _Known(
            numbers, shapes, request_bytes, _medians(kinds, times), _medians(by_number["size"][whole].tolist(), times),
            _medians(by_number["size"][whole].tolist(), waits),
            int(np.median(times)) if len(times) else 0, float(np.median(request_bytes)) if len(request_bytes) else 0.0,
        )  # fmt: skip


class _Held(NamedTuple):
    rows: Table
    ends: Table
    longest: int  # ns
    places: int


class _Known(NamedTuple):
    numbers: Table
    shapes: Table
    bytes_each: Table  # of a batch, by its size
    of_kind: dict[tuple[int, int, int], int]
    of_size: dict[int, int]
    cpu_wait: dict[int, int]
    of_all: int
    usual_bytes: float


def _magnitude(size: Any) -> Any:
    """Return the binary logarithm of a number of bytes."""
    return np.floor(np.log2(np.asarray(size) + 1))


def _medians(kinds: list[Any], times: Table) -> dict[Any, int]:
    """Return the median time of each kind with enough samples."""
    by_kind = dict[Any, list[int]]()
    for kind, time in zip(kinds, times.tolist(), strict=True):
        by_kind.setdefault(kind, []).append(time)
    return {kind: int(np.median(group)) for kind, group in by_kind.items() if len(group) >= _MIN_SAMPLES}
