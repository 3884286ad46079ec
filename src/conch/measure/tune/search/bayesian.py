"""Bayesian optimisation: a Gaussian process over the points, and the largest expected improvement.

The process has a Matérn kernel (5/2) with a length scale for each dimension. Scales and noise are chosen from few
values by the marginal likelihood, which suffices for grids of some thousand points.
"""

from math import erf, pi, sqrt
from random import Random

import numpy as np
from numpy.typing import NDArray

from conch.measure.tune.search.base import Proposal, Search
from conch.measure.tune.space import Point, Space

_SCALES = (0.3, 0.7, 1.5, 4.0)
_NOISES = (1e-3, 1e-2, 1e-1)  # variances; that of the scores is 1
_MIN_FIRST = 4  # points before the first model
_FIRST_SHARE = 0.3  # of the budget
_MAX_CANDIDATES = 4096  # at which the expected improvement is computed
_SPREAD_TRIALS = 32
_WORST = 2.0  # a score is not counted as worse than this many times the distance from the median to the best below it
_ERF = np.vectorize(erf)

_Array = NDArray[np.float64]


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
            return Proposal(self._far_point(left))
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
            if (found := self._likelihood(places, scores, self._scales, noise)) > best:
                best, self._noise = found, noise
        for dimension in range(len(self._scales)):
            for scale in _SCALES:
                scales = self._scales.copy()
                scales[dimension] = scale
                if (found := self._likelihood(places, scores, scales, self._noise)) > best:
                    best, self._scales = found, scales

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
