"""The default search on grids that were recorded on real models (benchmarks/tuning/grids.json)."""

from statistics import fmean, median

import pytest
from benchmarks.tuning.replay import read_grids, replay

from conch.measure.tune.search import DEFAULT_STRATEGY, STRATEGIES

GRIDS = read_grids()
SEEDS = range(15)


@pytest.mark.slow
@pytest.mark.parametrize("model", GRIDS)
def test_a_fifth_of_the_grid_finds_95_percent_of_its_best(model: str) -> None:
    results = [replay(GRIDS[model], DEFAULT_STRATEGY, 0.2, seed) for seed in SEEDS]
    assert all(result.measurements <= 0.2 * GRIDS[model].space.size for result in results)
    assert median(result.reached for result in results) >= 0.95


@pytest.mark.slow
def test_the_default_search_is_the_best_of_all() -> None:
    """Over all grids. On one where most configurations are good, another may be ahead by little."""
    reached = {
        name: fmean(replay(grid, name, 0.2, seed).reached for grid in GRIDS.values() for seed in SEEDS)
        for name in STRATEGIES
    }
    assert max(reached, key=lambda name: reached[name]) == DEFAULT_STRATEGY
