"""Run the requests of a batch together with all threads, or in concurrent parts with one thread each.

Which is faster depends on the model: threads that share short operators wait for each other most of the time, and
concurrent parts read large weights from memory several times. So both ways are measured. What parts need beyond the
whole, such as a second executor, is made in the background when a batch could first be divided.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from logging import getLogger
from time import monotonic_ns
from typing import TypeVar

_log = getLogger(__name__)

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# How many runs alternate between the two ways before one is preferred.
_TRIALS = 10
# Every N-th run retries the slower way: the load of the machine may have changed.
_RETRY_INTERVAL = 50


class SideBySide:
    """Runs lists of items in up to `threads` threads, including the caller's.

    Parts run once `prepare` has returned, which is called in another thread; if it raises, they never run.
    """

    def __init__(self, threads: int, name: str, prepare: Callable[[], None]) -> None:
        self._threads = threads
        self._name = name
        self._pool = ThreadPoolExecutor(max(threads - 1, 1), thread_name_prefix=name)
        self._choice = Choice()
        self._prepare = prepare
        self._prepared: Future[None] | None = None

    def run(
        self,
        whole: Callable[[Sequence[_Item]], list[_Result]],
        part: Callable[[Sequence[_Item]], list[_Result]],
        items: Sequence[_Item],
    ) -> list[_Result]:
        """Return the results in the order of the items, from one call of `whole` or from concurrent ones of `part`.

        Raises what they raise, after all parts have ended.
        """
        if len(items) == 1 or self._threads == 1 or not self._can_divide():
            return whole(items)
        in_parts = self._choice.next()
        began = monotonic_ns()
        results = self._in_parts(part, items) if in_parts else whole(items)
        self._choice.took(in_parts, (monotonic_ns() - began) / len(items))
        return results

    def _can_divide(self) -> bool:
        if self._prepared is None:
            self._prepared = self._pool.submit(self._prepare)
            return False
        if not self._prepared.done():
            return False
        if (error := self._prepared.exception()) is None:
            return True
        _log.warning("instance '%s': batches are not divided between the cores: %s", self._name, error)
        self._threads = 1
        return False

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()

    def _in_parts(self, run: Callable[[Sequence[_Item]], list[_Result]], items: Sequence[_Item]) -> list[_Result]:
        ways = min(self._threads, len(items))
        bounds = [len(items) * number // ways for number in range(ways + 1)]
        parts = [items[start:end] for start, end in pairwise(bounds)]
        others = [self._pool.submit(run, part) for part in parts[1:]]
        try:
            results = run(parts[0])
        finally:
            failures = [other.exception() for other in others]
        for failure in failures:
            if failure is not None:
                raise failure
        return [*results, *(result for other in others for result in other.result())]


class Choice:
    """Chooses the way that has taken less time for an item recently; True means in parts."""

    def __init__(self) -> None:
        self._times: dict[bool, float] = {}
        self._tried: set[bool] = set()
        self._count = 0

    def next(self) -> bool:
        """Return the way for the next run."""
        self._count += 1
        if self._count <= _TRIALS:
            return self._count % 2 == 0
        better = min(self._times, key=lambda way: self._times[way])
        return better if self._count % _RETRY_INTERVAL else not better

    def took(self, way: bool, time_per_item: float) -> None:
        """Record how long a run took."""
        if way not in self._tried:
            # The first run allocates memory, so its time is not typical.
            self._tried.add(way)
            return
        before = self._times.get(way, time_per_item)
        self._times[way] = before + (time_per_item - before) / 4
