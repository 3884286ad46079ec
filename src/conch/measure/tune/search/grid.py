"""All points, the current configuration first."""

from conch.measure.tune.search.base import Proposal, Search


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
