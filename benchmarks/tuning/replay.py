"""Replays the tuner's searches on recorded grids: which share of the grid's best each finds, for how many measurements.

`python -m benchmarks.tuning.replay [--share PERCENT …] [--seeds N]` prints a table for benchmarks/tuning/grids.json.

The value of a point is the median of its rounds, and a search receives one round at random, with that round's noise.
A search wins the value of what it chooses: as the tuner does, its three best are compared, and the best of them counts.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from random import Random
from statistics import fmean, median, quantiles
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from conch.measure.tune.search import STRATEGIES, Proposal
from conch.measure.tune.space import Dimension, Point, Space

GRIDS = Path(__file__).with_name("grids.json")
FINALISTS = 3


@dataclass(frozen=True)
class RecordedGrid:
    """A grid with the scores of each round, the logarithms of throughput; [] where every round failed."""

    model: str
    space: Space
    rounds: Mapping[Point, list[float]]

    def value(self, point: Point) -> float | None:
        """Return the score of a point without noise."""
        return median(self.rounds[point]) if self.rounds[point] else None

    @property
    def best(self) -> float:
        """The highest score."""
        return max(value for point in self.rounds if (value := self.value(point)) is not None)

    @property
    def noise(self) -> float:
        """The mean standard deviation of rounds, as a ratio."""
        spreads = [median(abs(value - median(values)) for value in values) for values in self.rounds.values() if values]
        return exp(1.4826 * fmean(spreads)) - 1


@dataclass(frozen=True)
class ReplayResult:
    """What one replay found: the share of the grid's best, and how many measurements it took."""

    reached: float
    measurements: float


def read_grids(path: Path = GRIDS) -> dict[str, RecordedGrid]:
    """Return the recorded grids by model."""
    return {name: _grid(value) for name, value in json.loads(path.read_text())["grids"].items()}


def replay(grid: RecordedGrid, strategy: str, share: float, seed: int) -> ReplayResult:
    """Run a search on a grid from its first point, with a share of its measurements."""
    noise = Random(seed)
    budget = float(int(grid.space.size * share))
    start = next(grid.space.points())
    search = STRATEGIES[strategy](grid.space, start, budget, Random(seed))
    while (proposal := search.propose()) is not None:
        search.tell(proposal, _measured(grid, proposal, noise))
    reached = [value for point in search.best(FINALISTS) if (value := grid.value(point)) is not None]
    return ReplayResult(exp(max(reached) - grid.best) if reached else 0.0, budget - search.budget)


def _measured(grid: RecordedGrid, proposal: Proposal, noise: Random) -> float | None:
    """Return the score of a random round. A window of a quarter has twice the noise of a whole one."""
    scores = grid.rounds[proposal.point]
    if not scores:
        return None
    value = grid.value(proposal.point)
    assert value is not None
    return value + (noise.choice(scores) - value) / proposal.effort**0.5


def _grid(value: Mapping[str, Any]) -> RecordedGrid:
    dimensions = tuple(
        Dimension(dimension["name"], tuple(dimension["values"]), dimension["ordered"])
        for dimension in value["dimensions"]
    )
    rounds = {
        tuple(point["point"]): [log(figures["throughput"]) for figures in point["rounds"] if figures is not None]
        for point in value["points"]
    }
    return RecordedGrid(value["model"], Space(dimensions), rounds)


def main(
    share: Annotated[list[int] | None, typer.Option()] = None, seeds: Annotated[int, typer.Option()] = 100
) -> None:
    """Print for each grid and search the mean share of the best, its lowest decile, and the measurements."""
    table = Table("model", "points", "noise", "search", "share", "mean", "lowest tenth", "measurements")
    for grid in read_grids().values():
        for percent in share or [10, 20]:
            for strategy in STRATEGIES:
                results = [replay(grid, strategy, percent / 100, seed) for seed in range(seeds)]
                reached = [result.reached for result in results]
                table.add_row(
                    grid.model,
                    str(grid.space.size),
                    f"{grid.noise:.1%}",
                    strategy,
                    f"{percent} %",
                    f"{fmean(reached):.1%}",
                    f"{quantiles(reached, n=10)[0]:.1%}",
                    f"{fmean(result.measurements for result in results):.0f}",
                )
    Console(width=120).print(table)


if __name__ == "__main__":
    typer.run(main)
