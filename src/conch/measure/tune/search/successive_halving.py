"""Successive halving: many points with short windows, the better third of them with longer ones, and so on."""

from conch.measure.tune.search.base import Proposal, Search
from conch.measure.tune.space import Point

_RUNGS = (0.25, 0.5, 1.0)  # efforts
_KEPT = 1 / 2  # share of a rung that enters the next


class SuccessiveHalving(Search):
    """Spends a third of the budget on each rung. The start stays in every rung."""

    _queue: list[Point] | None = None
    _rung = 0
    _entered: tuple[Point, ...] = ()

    def propose(self) -> Proposal | None:
        if self._queue is None:
            self._queue = self._first_rung()
            self._entered = tuple(self._queue)
        while not self._queue:
            if self._rung + 1 == len(_RUNGS):
                return None
            self._rung += 1
            self._queue = self._survivors()
            self._entered = tuple(self._queue)
        effort = _RUNGS[self._rung]
        return Proposal(self._queue.pop(0), effort) if self._affords(effort) else None

    def best(self, count: int) -> list[Point]:
        """Return points of the latest rung: those with short windows are noisier, and their maximum flatters."""
        measured = [point for point in self._entered if self._queue is None or point not in self._queue]
        ranked = super().best(len(self.scores))
        return [point for point in ranked if point in measured][:count]

    def _first_rung(self) -> list[Point]:
        count = max(2, int(self.budget / (len(_RUNGS) * _RUNGS[0])))
        others = [point for point in self.space.points() if point != self.start]
        self.random.shuffle(others)
        return [self.start, *others[: count - 1]]

    def _survivors(self) -> list[Point]:
        ranked = [point for point in super().best(len(self.scores)) if point in self._entered]
        kept = ranked[: max(1, round(len(self._entered) * _KEPT))]
        return kept if self.start in kept or self.scores[self.start] is None else [*kept[:-1], self.start]
