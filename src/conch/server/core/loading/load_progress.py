"""Loads in progress: which models, since when, and what they wait for. Clients and the index read them.

The load of an ensemble waits for the loads of its steps, the load of a model for those that its `initialize` requests.
Loads of one model are serialized, so a cycle would never end. The load that would close one is rejected.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import NamedTuple

from conch.base.errors import Code, ModelLoadError
from conch.server.repository.namespaces import ModelId

_MIN_RETRY_S, _MAX_RETRY_S = 1.0, 10.0


class LoadWaits:
    """The loads in progress that wait for others."""

    def __init__(self) -> None:
        self._waits: list[tuple[ModelId, ModelId]] = []  # (waiter, awaited)

    @contextmanager
    def waiting(self, waiter: ModelId, awaited: ModelId, *, ensembles: bool = False) -> Iterator[None]:
        """Within the block, `waiter` waits for `awaited`. Raises ModelLoadError, naming the cycle, for a deadlock."""
        path = self._path(awaited, waiter)
        if path:
            cycle = " → ".join(map(str, (waiter, *path)))
            between = f" between ensembles: {waiter} -> ... -> {(waiter, *path)[-2]} -> {waiter}" if ensembles else ""
            raise ModelLoadError(
                f"circular dependency{between}: a load would wait for itself: {cycle}", Code.INVALID_ARG
            )
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


class LoadState(NamedTuple):
    """The state of a load as clients read it, and when a retry may succeed."""

    text: str
    retry_after_s: float


class LoadProgress:
    """The models that are being loaded or will be, in the order in which their loads began."""

    def __init__(self) -> None:
        self.waits = LoadWaits()
        self._since: dict[ModelId, float] = {}
        self._number: dict[ModelId, int] = {}  # of loads of one model, which are executed one by one
        self._reading_since: float | None = None  # the server reads its repository, so it knows no names yet
        self.on_phase: Callable[[ModelId, str], None] | None = None  # a load is in a new phase; "" at its end

    def begin(self, model: ModelId) -> None:
        """Record that a load was requested. The model's state then is *loading* until the last `end`."""
        self._since.setdefault(model, monotonic())
        self._number[model] = self._number.get(model, 0) + 1

    def end(self, model: ModelId) -> None:
        """Record the end of a load, successful or not."""
        self._number[model] -= 1
        if not self._number[model]:
            del self._number[model], self._since[model]
            self.enter(model, "")

    def enter(self, model: ModelId, phase: str) -> None:
        """Report that the load of a model is in a new phase."""
        if self.on_phase is not None:
            self.on_phase(model, phase)

    @contextmanager
    def loading(self, model: ModelId) -> Iterator[None]:
        """Record a load for the duration of the block."""
        self.begin(model)
        try:
            yield
        finally:
            self.end(model)

    def begin_reading(self) -> None:
        """Record that the server reads its repository for the first time."""
        self._reading_since = monotonic()

    def end_reading(self) -> None:
        """Record that the names of the models are known."""
        self._reading_since = None

    @property
    def reading(self) -> bool:
        """Whether the server reads its repository for the first time."""
        return self._reading_since is not None

    def models(self) -> Collection[ModelId]:
        """Return the models that are being loaded."""
        return self._since.keys()

    def state(self, name: str, models: Iterable[ModelId]) -> LoadState | None:
        """Return the state of a load that keeps a name from being served; None without such a load.

        `models` are those that the name may refer to.
        """
        model = next((model for model in models if model in self._since), None)
        since = self._reading_since if model is None else self._since[model]
        if since is None:
            return None
        seconds = monotonic() - since
        what = f"model '{name}' is loading" if model is not None else "the server is reading its model repository"
        awaited = self.waits.awaited(model) if model is not None else None
        waiting = f"; waits for model '{awaited}'" if awaited is not None else ""
        # Clients that follow this retry ask more rarely the longer a load takes.
        pause = min(max(seconds / 4, _MIN_RETRY_S), _MAX_RETRY_S)
        return LoadState(f"{what} ({seconds:.0f} s so far{waiting})", pause)
