"""The searches by name."""

from conch.measure.tune.search.base import Search
from conch.measure.tune.search.bayesian import BayesianSearch
from conch.measure.tune.search.grid import GridSearch, RandomSearch
from conch.measure.tune.search.hill_climb import HillClimb
from conch.measure.tune.search.successive_halving import SuccessiveHalving

STRATEGIES: dict[str, type[Search]] = {
    "bayesian": BayesianSearch,
    "climb": HillClimb,
    "halving": SuccessiveHalving,
    "grid": GridSearch,
    "random": RandomSearch,
}
DEFAULT_STRATEGY = "bayesian"
"""The best of them on recorded grids: docs/tuning.md has the figures, benchmarks/tuning_replay.py measures them."""
