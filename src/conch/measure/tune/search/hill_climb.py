"""Hill climbing along the dimensions, as Model Analyzer's quick search, with random restarts."""

from conch.measure.tune.search.base import Proposal, Search
from conch.measure.tune.space import Point


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
