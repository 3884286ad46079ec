"""The interface of searches."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from random import Random

from conch.measure.tune.space import Point, Space


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
