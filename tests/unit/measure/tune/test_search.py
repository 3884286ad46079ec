from math import log
from random import Random

import pytest

from conch.measure.tune.search import STRATEGIES, Search
from conch.measure.tune.space import Dimension, Point, Space

SPACE = Space(
    (
        Dimension("instances", (1, 2, 3, 4)),
        Dimension("threads", (1, 2)),
        Dimension("max_batch_size", (1, 4, 8)),
        Dimension("backend", ("onnxruntime", "openvino"), ordered=False),
    )
)


def _score(point: Point) -> float | None:
    """Two cores, batches that pay, one backend that is better, and one configuration that fails."""
    settings = SPACE.settings(point)
    instances, threads, batch = (int(str(settings[name])) for name in ("instances", "threads", "max_batch_size"))
    if instances == 4 and batch == 8:
        return None
    busy = min(2.0, instances * threads**0.8) / (1 + 0.1 * max(0, instances * threads - 2))
    return log(busy * batch / (0.5 + 0.5 * batch)) + (0.2 if settings["backend"] == "openvino" else 0.0)


def _run(search: Search) -> list[Point]:
    proposed = []
    while (proposal := search.propose()) is not None:
        proposed.append(proposal.point)
        search.tell(proposal, _score(proposal.point))
    return proposed


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_search_stays_within_its_budget_and_begins_with_the_current_configuration(name: str) -> None:
    start = (1, 0, 1, 0)
    search = STRATEGIES[name](SPACE, start, 12.0, Random(1))
    proposed = _run(search)
    assert proposed[0] == start
    assert search.budget >= -1e-9
    assert len(search.best(3)) == 3
    assert all(_score(point) is not None for point in search.best(48))


@pytest.mark.parametrize("name", ["bayesian", "climb", "grid"])
def test_a_search_with_the_whole_grid_as_budget_finds_the_best(name: str) -> None:
    search = STRATEGIES[name](SPACE, (0, 0, 0, 0), float(SPACE.size), Random(1))
    proposed = _run(search)
    assert len(set(proposed)) == len(proposed), "no point is measured twice"
    top = max(score for point in SPACE.points() if (score := _score(point)) is not None)
    assert _score(search.best(1)[0]) == top


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_same_seed_proposes_the_same_points(name: str) -> None:
    runs = [_run(STRATEGIES[name](SPACE, (0, 0, 0, 0), 15.0, Random(7))) for _ in range(2)]
    assert runs[0] == runs[1]


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_search_survives_configurations_that_all_fail(name: str) -> None:
    search = STRATEGIES[name](SPACE, (0, 0, 0, 0), 10.0, Random(3))
    while (proposal := search.propose()) is not None:
        search.tell(proposal, None)
    assert search.best(3) == []


def test_bayesian_search_beats_chance_on_a_noisy_grid() -> None:
    def regret(name: str) -> float:
        lost = 0.0
        for seed in range(10):
            noise = Random(seed)
            search = STRATEGIES[name](SPACE, (0, 0, 0, 0), 12.0, Random(seed))
            while (proposal := search.propose()) is not None:
                score = _score(proposal.point)
                search.tell(proposal, None if score is None else score + noise.gauss(0, 0.03))
            scores = [score for point in search.best(1) if (score := _score(point)) is not None]
            lost += max(score for point in SPACE.points() if (score := _score(point)) is not None) - max(scores)
        return lost

    assert regret("bayesian") < regret("random")


def test_unordered_values_are_equally_far_apart() -> None:
    space = Space((Dimension("backend", ("a", "b", "c"), ordered=False),))
    a, b, c = (space.coordinates((index,)) for index in range(3))
    assert abs(((a - b) ** 2).sum() - 1) < 1e-9
    assert abs(((a - c) ** 2).sum() - 1) < 1e-9


def test_nearest_takes_the_first_value_for_unknown_ones() -> None:
    assert SPACE.nearest({"instances": 3, "max_batch_size": 5}) == (2, 0, 0, 0)


def test_a_dimension_needs_distinct_values() -> None:
    with pytest.raises(ValueError, match="distinct values"):
        Dimension("instances", (1, 1))
