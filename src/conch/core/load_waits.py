"""Which loads wait for which: an ensemble's for those of its steps, a model's for what it loads in `initialize`.

Loads of one model follow each other, so loads that wait for each other in a circle would wait for ever. The one that
would close a circle is refused.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from conch.errors import Code, ModelLoadError
from conch.repository.namespaces import ModelId


class LoadWaits:
    """The loads under way that wait, and what for."""

    def __init__(self) -> None:
        self._waits: list[tuple[ModelId, ModelId]] = []  # (who waits, for whom)

    @contextmanager
    def waiting(self, waiter: ModelId, awaited: ModelId) -> Iterator[None]:
        """Wait inside of the block. Raises ModelLoadError, naming the circle, if that would be for ever."""
        path = self._path(awaited, waiter)
        if path:
            circle = " → ".join(map(str, (waiter, *path)))
            raise ModelLoadError(f"circular dependency: a load would wait for itself: {circle}", Code.INVALID_ARG)
        self._waits.append((waiter, awaited))
        try:
            yield
        finally:
            self._waits.remove((waiter, awaited))

    def _path(self, start: ModelId, goal: ModelId) -> tuple[ModelId, ...]:
        """Return the models from one to another, each waiting for the next; () if there is no such way."""
        if start == goal:
            return (start,)
        # There is no circle yet, so this ends.
        for awaited in {awaited for waiter, awaited in self._waits if waiter == start}:
            if rest := self._path(awaited, goal):
                return (start, *rest)
        return ()
