"""Where the time of an execution goes: copies, computing as usual or not, missing processors, stopped processes."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from conch.domain.causes.log_index import LogIndex
from conch.domain.causes.model_batches import LOOK_NS
from conch.domain.causes.parts import Interval, TimePart, carve
from conch.domain.events.layout import INSTANCE_CHANGES

_MIN_SLOW: Final = 0.1  # of the usual time: a batch within it is not slow
_MIN_HIT_SHARE: Final = 0.5  # of a model's requests, from which on a miss is an exception
_STOPPED: Final = (INSTANCE_CHANGES.index("stopped"),)
_STALLED: Final = INSTANCE_CHANGES.index("stalled")


class ExecutionTimes:
    """The parts of executions."""

    def __init__(self, index: LogIndex) -> None:
        self._index = index
        self._misses: dict[tuple[int, int], bool] = {}

    def parts(self, batch: Any, own: Any) -> list[TimePart]:
        """Return the parts of an execution, from its start to the end of computing.

        `own` is the member whose time it is, None for a request that waits behind the batch.
        """
        name, number = self._index.name(batch["model"]), int(batch["number"])
        start = int(batch["started"])
        computing = int(batch["input_done"] or start)
        end = int(batch["infer_done"] or batch["released"] or self._index.log.monotonic_ns)
        model = self._index.batches(batch)
        usual = model.usual(batch)
        seen = [] if not start else model.lasted(int(batch["instance"]), _STOPPED, computing, end + LOOK_NS)
        waited = max(int(batch["cpu_wait_ns"]), 0)
        # The process may have waited for a processor before it had the inputs: what computing does not explain.
        used, known = int(batch["cpu_ns"]), usual.for_kind or usual.for_size
        if known and used + waited > (1 + _MIN_SLOW) * (end - start):
            used = known  # of several threads: one spins while another one waits
        worked = max(used, known)
        before = min(max(waited - max(end - computing - worked, 0), 0), computing - start)
        cpu = min(waited - before, max(end - computing - used, 0))
        work = max(end - computing - cpu, 0)
        expected, large, slow = min(usual.for_kind or usual.for_size or work, work), 0, 0
        if usual.is_large and (usual.for_kind or work) > (1 + _MIN_SLOW) * usual.for_size:
            expected = min(usual.for_size, work)
            large = min(usual.for_kind or work, work) - expected
        if (rest_ns := work - expected - large) > _MIN_SLOW * (expected + large):
            slow = rest_ns
        else:
            expected += rest_ns
        stalled = bool(start and model.stalls(int(batch["instance"]), _STALLED, start - LOOK_NS, end))
        if stalled and not (usual.for_kind or usual.for_size):
            expected, slow = 0, slow + expected
        # A process is looked at from time to time: it was stopped a while before that was seen.
        stopped = [(max(first - LOOK_NS, computing), min(last, end)) for first, last in seen if first < end + LOOK_NS]
        stopped = stopped[:1] if slow else []
        waits = "hung" if stalled and not stopped else "slow"
        if stopped:
            first, last = stopped[0]
            stopped = [(max(last - slow, first), last)]
            slow -= stopped[0][1] - stopped[0][0]
        if own is None:  # others need not wait longer because of what all batches wait for a processor
            usual_wait = min(cpu, usual.cpu_wait)
            expected, cpu = expected + usual_wait, cpu - usual_wait
        ordinary = "miss" if own is not None and self._is_miss(own) else "compute"
        because = "large" if own is None or not self._is_large_one(own) else "own_large"
        if large and own is None:  # who waits behind it would not without it
            ordinary, expected, large = "large", 0, expected + large
        copied = computing - before
        parts = [TimePart("copy", start, copied, name, number), TimePart("cpu", copied, computing, name, number)]
        if copied - start > LOOK_NS // 2:  # stopped before it had the inputs
            early = model.lasted(int(batch["instance"]), _STOPPED, start, end)
            parts = carve(parts, [(first - LOOK_NS, last) for first, last in early], "stopped", ("copy", "cpu"))
        lengths = ((ordinary, expected), (because, large), ("cpu", cpu), (waits, slow))
        parts += _laid_out(lengths, stopped, computing, name, number)
        parts = [part for part in parts if part.ns > 0]
        return carve(parts, self._index.loadings(start, end), "loading", ("cpu", "slow"))

    def _is_large_one(self, row: Any) -> bool:
        members = self._index.members.rows(int(row["batch"]))
        return 2 * int(row["input_bytes"]) >= int(members["input_bytes"].sum())

    def _is_miss(self, row: Any) -> bool:
        """Whether the model's response cache answers most requests, but not this one."""
        key = (int(row["model"]), int(row["version"]))
        if key not in self._misses:
            requests = self._index.log.requests
            hits = requests["cache_hit"][(requests["model"] == key[0]) & (requests["version"] == key[1])]
            self._misses[key] = bool(len(hits)) and float(hits.mean()) >= _MIN_HIT_SHARE
        return self._misses[key] and not row["cache_hit"]


def _laid_out(
    lengths: Iterable[tuple[str, int]], stopped: Sequence[Interval], at: int, model: str, batch: int
) -> Iterator[TimePart]:
    """Yield parts of some lengths (ns) one after the other, around the times in which the process was stopped."""
    rest = list(stopped)
    for cause, length in lengths:
        while length > 0:
            if rest and rest[0][0] <= at:
                yield TimePart("stopped", at, rest[0][1], model, batch)
                at = rest.pop(0)[1]
                continue
            piece = min(length, rest[0][0] - at) if rest else length
            yield TimePart(cause, at, at + piece, model, batch)
            at, length = at + piece, length - piece
    for low, high in rest:
        yield TimePart("stopped", max(low, at), high, model, batch)
