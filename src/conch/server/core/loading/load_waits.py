"""Deadlock detection among loads that wait for each other.

The load of an ensemble waits for those of its steps, the load of a model for those that its `initialize` requests.
Loads of one model are serialized, so a cycle would never end. The load that would close one is rejected.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from conch.base.errors import Code, ModelLoadError
from conch.server.repository.namespaces import ModelId


class LoadWaits:
    """The loads in progress that wait for others."""

    def __init__(self) -> None:
        self._waits: list[tuple[ModelId, ModelId]] = []  # (waiter, awaited)

    @contextmanager
    def waiting(self, waiter: ModelId, awaited: ModelId) -> Iterator[None]:
        """Within the block, `waiter` waits for `awaited`. Raises ModelLoadError, naming the cycle, for a deadlock."""
        path = self._path(awaited, waiter)
        if path:
            cycle = " → ".join(map(str, (waiter, *path)))
            raise ModelLoadError(f"circular dependency: a load would wait for itself: {cycle}", Code.INVALID_ARG)
        self._waits.append((waiter, awaited))
        try:
            yield
        finally:
            self._waits.remove((waiter, awaited))

    def awaited(self, waiter: ModelId) -> ModelId | None:
        """Return the model whose load a load waits for, None if it waits for none."""
        return next((awaited for model, awaited in self._waits if model == waiter), None)

    def _path(self, start: ModelId, goal: ModelId) -> tuple[ModelId, ...]:
        """Return a path of models, each waiting for the next; () if there is none."""
        before = {start: start}  # the reached models, each with its predecessor
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
