"""The searches by name."""

from conch.tuning.search.base import Search
from conch.tuning.search.bayesian import BayesianSearch
from conch.tuning.search.grid import GridSearch, RandomSearch
from conch.tuning.search.hill_climb import HillClimb
from conch.tuning.search.successive_halving import SuccessiveHalving

STRATEGIES: dict[str, type[Search]] = {
    "bayesian": BayesianSearch,
    "climb": HillClimb,
    "halving": SuccessiveHalving,
    "grid": GridSearch,
    "random": RandomSearch,
}
DEFAULT_STRATEGY = "bayesian"
"""The best of them on recorded grids: docs/tuning.md has the figures, benchmarks/tuning_replay.py measures them."""
