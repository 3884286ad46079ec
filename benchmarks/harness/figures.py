"""What was measured: a quantity per peer and round, compared round by round, and what was to be reached."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

CONCH, TRITON, ALONE = "conch", "triton", "alone"
"""Who was measured; `ALONE` is the same work in one process without a server."""


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
        return spread(self.rounds.get(peer, []))

    def ratio(self, peer: str, to: str) -> Spread | None:
        """Return the spread of `peer` divided by `to`, round by round; None where one of them was not measured."""
        pairs = zip(self.rounds.get(peer, []), self.rounds.get(to, []), strict=False)
        return spread([ours / theirs for ours, theirs in pairs if theirs])


@dataclass(frozen=True)
class Target:
    """What the ratio of Conch's `figure` to that of `beside` is to reach: `bound` or better."""

    figure: str
    bound: float
    beside: str = TRITON

    def reached(self, figure: Figure) -> bool | None:
        """Whether the median of the ratios is good enough; None where it was not measured."""
        ratio = figure.ratio(CONCH, to=self.beside)
        if ratio is None:
            return None
        return ratio.median >= self.bound if figure.higher_is_better else ratio.median <= self.bound


@dataclass
class Result:
    """The figures of one work, the one that counts first; `error` says why there are none or too few."""

    work: str
    figures: list[Figure]
    targets: Sequence[Target] = ()
    error: str | None = None

    def figure(self, name: str) -> Figure:
        """Return the figure of that name. Raises StopIteration if there is none: a target without a measurement."""
        return next(figure for figure in self.figures if figure.name == name)


def spread(values: Sequence[float]) -> Spread | None:
    """Return the spread of some values; None of none."""
    if not values:
        return None
    return Spread(median=statistics.median(values), low=min(values), high=max(values))
