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
        before = {start: start}  # the models that are reached, and from where
        reached = [start]
        for model in reached:
            if model == goal:
                path = [goal]
                while path[-1] != start:
                    path.append(before[path[-1]])
                return tuple(reversed(path))
            for waiter, awaited in self._waits:
                if waiter == model and awaited not in before:
                    before[awaited] = model
                    reached.append(awaited)
        return ()
