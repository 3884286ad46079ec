"""What was measured: a quantity per peer and round, compared round by round."""

import statistics
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Spread:
    """The middle of some values and how far they go."""

    median: float
    low: float
    high: float


@dataclass
class Figure:
    """One quantity of one work: what each peer reached in each round."""

    name: str
    unit: str
    higher_is_better: bool
    rounds: dict[str, list[float]] = field(default_factory=dict)

    def add(self, peer: str, value: float) -> None:
        """Note the value of the next round of `peer`."""
        self.rounds.setdefault(peer, []).append(value)

    def spread(self, peer: str) -> Spread | None:
        """Return the spread over the rounds of `peer`; None where it was not measured."""
        return _spread(self.rounds.get(peer, []))

    def ratio(self, peer: str, to: str) -> Spread | None:
        """Return the spread of `peer` divided by `to`, round by round; None where one of them was not measured."""
        pairs = zip(self.rounds.get(peer, []), self.rounds.get(to, []), strict=False)
        return _spread([ours / theirs for ours, theirs in pairs if theirs])


@dataclass
class Result:
    """The figures of one work, the one that counts first; `error` says why there are none or too few."""

    work: str
    figures: list[Figure]
    error: str | None = None


def _spread(values: list[float]) -> Spread | None:
    if not values:
        return None
    return Spread(median=statistics.median(values), low=min(values), high=max(values))
