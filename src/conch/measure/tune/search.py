"""The searches of conch tune, by name: each proposes the next configuration from what was measured. Pure."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import erf, pi, sqrt
from random import Random

import numpy as np
from numpy.typing import NDArray

from conch.measure.tune.space import Point, Space

_RUNGS = (0.25, 0.5, 1.0)  # efforts
_KEPT = 1 / 2  # share of a rung that enters the next
_SCALES = (0.3, 0.7, 1.5, 4.0)
_NOISES = (1e-3, 1e-2, 1e-1)  # variances; that of the scores is 1
_MIN_FIRST = 4  # points before the first model
_FIRST_SHARE = 0.3  # of the budget
_MAX_CANDIDATES = 4096  # at which the expected improvement is computed
_SPREAD_TRIALS = 32
_WORST = 2.0  # a score is not counted as worse than this many times the distance from the median to the best below it
_ERF = np.vectorize(erf)

_Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A point to measure. `effort` is the share of a full measuring window, above 0 and at most 1."""

    point: Point
    effort: float = 1.0


class Search(ABC):
    """Proposes one point after the other. Call `propose`, measure, `tell`; until `propose` returns None.

    `budget` bounds the sum of efforts. `start` is the current configuration, which is proposed first.
    """

    def __init__(self, space: Space, start: Point, budget: float, random: Random) -> None:
        self.space = space
        self.start = start
        self.budget = budget
        self.random = random
        self.hints: list[Point] = []
        """Points that may be good, the best first: the default search begins with them."""
        self.scores: dict[Point, float | None] = {}
        """The latest score of each measured point; None if it failed."""

    @abstractmethod
    def propose(self) -> Proposal | None:
        """Return what to measure next, or None at the end."""

    def tell(self, proposal: Proposal, score: float | None) -> None:
        """Record the score of the last proposal, higher is better; None: the configuration does not work."""
        self.scores[proposal.point] = score
        self.budget -= proposal.effort

    def best(self, count: int) -> list[Point]:
        """Return up to `count` measured points, the best first. Points that failed are not among them."""
        working = {point: score for point, score in self.scores.items() if score is not None}
        return sorted(working, key=lambda point: working[point], reverse=True)[:count]

    def _affords(self, effort: float = 1.0) -> bool:
        return self.budget >= effort - 1e-9

    def _unmeasured(self) -> list[Point]:
        return [point for point in self.space.points() if point not in self.scores]


class GridSearch(Search):
    """Measures every point once; with a smaller budget, the first ones."""

    def propose(self) -> Proposal | None:
        if not self._affords():
            return None
        if self.start not in self.scores:
            return Proposal(self.start)
        return next((Proposal(point) for point in self.space.points() if point not in self.scores), None)


class RandomSearch(Search):
    """Measures points at random: what a search must beat."""

    def propose(self) -> Proposal | None:
        if not self._affords():
            return None
        if self.start not in self.scores:
            return Proposal(self.start)
        left = self._unmeasured()
        return Proposal(self.random.choice(left)) if left else None


class HillClimb(Search):
    """Tries the neighbours of the best point in all dimensions and moves to a better one at once.

    Where no neighbour is better it restarts at a random point, until the budget is spent.
    """

    _at: Point | None = None
    _dimension = 0
    _unchanged = 0

    def propose(self) -> Proposal | None:
        if not self._affords():
            return None
        if self.start not in self.scores:
            self._at = self.start
            return Proposal(self.start)
        while self._unchanged < len(self.space.dimensions):
            assert self._at is not None
            for point in self.space.neighbours(self._at, self._dimension):
                if point not in self.scores:
                    return Proposal(point)
            self._dimension = (self._dimension + 1) % len(self.space.dimensions)
            self._unchanged += 1
        left = self._unmeasured()
        if not left:
            return None
        self._at, self._unchanged = self.random.choice(left), 0
        return Proposal(self._at)

    def tell(self, proposal: Proposal, score: float | None) -> None:
        super().tell(proposal, score)
        here = None if self._at is None else self.scores.get(self._at)
        if score is not None and (here is None or score > here):
            # The next step continues in the same dimension.
            self._at, self._unchanged = proposal.point, 0


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


class BayesianSearch(Search):
    """Measures some points that lie far apart, then those from which the model expects most."""

    def __init__(self, space: Space, start: Point, budget: float, random: Random) -> None:
        super().__init__(space, start, budget, random)
        self._first = max(_MIN_FIRST, len(space.dimensions) + 1, round(budget * _FIRST_SHARE))
        self._scales = np.full(len(space.dimensions), _SCALES[1])
        self._noise = _NOISES[1]

    def propose(self) -> Proposal | None:
        if not self._affords():
            return None
        if self.start not in self.scores:
            return Proposal(self.start)
        left = self._unmeasured()
        if not left:
            return None
        if len(self.scores) < self._first or len(self.best(2)) < 2:
            hint = next((point for point in self.hints if point not in self.scores), None)
            # In turn with points that lie far apart: a hint may be wrong.
            return Proposal(hint if hint and len(self.scores) % 2 else self._far_point(left))
        if len(left) > _MAX_CANDIDATES:
            left = self.random.sample(left, _MAX_CANDIDATES)
        return Proposal(left[int(np.argmax(self._expected_improvement(left)))])

    def _far_point(self, left: list[Point]) -> Point:
        """Return the one of some random points that is farthest from the measured ones."""
        measured = self._coordinates(list(self.scores))
        tried = self.random.sample(left, min(_SPREAD_TRIALS, len(left)))
        distances = [np.linalg.norm(measured - self.space.coordinates(point), axis=1).min() for point in tried]
        return tried[int(np.argmax(distances))]

    def _expected_improvement(self, points: list[Point]) -> _Array:
        measured = list(self.scores)
        scores = _standardised([self.scores[point] for point in measured])
        places = self._coordinates(measured)
        self._fit(places, scores)
        mean, deviation = self._predict(places, scores, self._coordinates(points))
        fitted, _ = self._predict(places, scores, places)
        gain = mean - fitted.max()
        ratio = gain / deviation
        density = np.exp(-(ratio**2) / 2) / sqrt(2 * pi)
        return np.asarray(gain * (1 + _ERF(ratio / sqrt(2))) / 2 + deviation * density)

    def _coordinates(self, points: list[Point]) -> _Array:
        return np.array([self.space.coordinates(point) for point in points])

    def _fit(self, places: _Array, scores: _Array) -> None:
        """Choose noise and scales by the marginal likelihood, one after the other, from the previous choice."""
        best = self._likelihood(places, scores, self._scales, self._noise)
        for noise in _NOISES:
            if (likelihood := self._likelihood(places, scores, self._scales, noise)) > best:
                best, self._noise = likelihood, noise
        for dimension in range(len(self._scales)):
            for scale in _SCALES:
                scales = self._scales.copy()
                scales[dimension] = scale
                if (likelihood := self._likelihood(places, scores, scales, self._noise)) > best:
                    best, self._scales = likelihood, scales

    def _likelihood(self, places: _Array, scores: _Array, scales: _Array, noise: float) -> float:
        factor = np.linalg.cholesky(self._kernel(places, places, scales) + noise * np.eye(len(places)))
        weighted = np.linalg.solve(factor, scores)
        return float(-weighted @ weighted / 2 - np.log(np.diag(factor)).sum())

    def _predict(self, places: _Array, scores: _Array, at: _Array) -> tuple[_Array, _Array]:
        """Return mean and standard deviation at some places."""
        between = self._kernel(places, at, self._scales)
        factor = np.linalg.cholesky(self._kernel(places, places, self._scales) + self._noise * np.eye(len(places)))
        reduced = np.linalg.solve(factor, between)
        mean = reduced.T @ np.linalg.solve(factor, scores)
        variance = np.maximum(1 - (reduced**2).sum(axis=0), 1e-9)
        return np.asarray(mean), np.sqrt(variance)

    def _kernel(self, left: _Array, right: _Array, scales: _Array) -> _Array:
        divisor = scales[self.space.axis_owner()]
        distance = np.linalg.norm((left[:, None, :] - right[None, :, :]) / divisor, axis=2) * sqrt(5)
        return np.asarray((1 + distance + distance**2 / 3) * np.exp(-distance))


def _standardised(scores: list[float | None]) -> _Array:
    """Return scores with mean 0 and variance 1. Failures count as the worst; outliers below are clipped."""
    known = np.array([score for score in scores if score is not None])
    floor = np.median(known) - _WORST * max(known.max() - np.median(known), 1e-6)
    values = np.array([floor if score is None else max(score, floor) for score in scores])
    deviation = values.std()
    return np.asarray((values - values.mean()) / (deviation if deviation > 0 else 1.0))


STRATEGIES: dict[str, type[Search]] = {
    "bayesian": BayesianSearch,
    "climb": HillClimb,
    "halving": SuccessiveHalving,
    "grid": GridSearch,
    "random": RandomSearch,
}
DEFAULT_STRATEGY = "bayesian"
"""The best of them on recorded grids: docs/tuning.md has the figures, benchmarks/tuning/replay.py measures them."""
