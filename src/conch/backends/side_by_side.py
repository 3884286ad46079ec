"""The requests of a batch in one run with all threads, or in parts side by side with a thread each.

Which is quicker is the model's affair. Where operators are short, threads that share each of them spend their time
waiting for one another; where weights are large, each part would read them from memory anew. So it is measured.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from time import monotonic_ns
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# How many runs take the two ways in turns before one is preferred.
_TRIALS = 10
# How seldom the slower way is tried again. Models do not change their minds, but machines do.
_TRY_AGAIN = 50


class SideBySide:
    """Runs lists of items in up to `threads` threads, the caller's included."""

    def __init__(self, threads: int, name: str) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(max(threads - 1, 1), thread_name_prefix=name)
        self._choice = Choice()

    def run(self, run: Callable[[Sequence[_Item]], list[_Result]], items: Sequence[_Item]) -> list[_Result]:
        """Return the results in the order of the items, by `run`, which takes any part of them.

        Raises what `run` raises, when all parts have ended.
        """
        if len(items) == 1 or self._threads == 1:
            return run(items)
        in_parts = self._choice.next()
        began = monotonic_ns()
        results = self._in_parts(run, items) if in_parts else run(items)
        self._choice.took(in_parts, (monotonic_ns() - began) / len(items))
        return results

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
    """Which of two ways has taken less time for an item of late."""

    def __init__(self) -> None:
        self._times: dict[bool, float] = {}
        self._tried: set[bool] = set()
        self._count = 0

    def next(self) -> bool:
        """Return the way to go now."""
        self._count += 1
        if self._count <= _TRIALS:
            return self._count % 2 == 0
        better = min(self._times, key=lambda way: self._times[way])
        return better if self._count % _TRY_AGAIN else not better

    def took(self, way: bool, time_per_item: float) -> None:
        """Tell how long it took."""
        if way not in self._tried:
            # The first time makes room for what it needs, and says nothing about the next.
            self._tried.add(way)
            return
        before = self._times.get(way, time_per_item)
        self._times[way] = before + (time_per_item - before) / 4
