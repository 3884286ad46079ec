from collections.abc import Sequence

from conch.measure.tune.objective import Constraint, Goal
from conch.measure.tune.outcome import Contestant, compare, winner


def _contestant(name: str, throughputs: Sequence[float], p99: float = 0.01) -> Contestant:
    return Contestant(name, tuple({"throughput": value, "p99": p99} for value in throughputs))


CURRENT = _contestant("current", [100, 80, 120, 90, 110])


def test_a_gain_in_each_round_is_shown_although_the_rounds_differ() -> None:
    better = _contestant("A", [110, 88, 132, 99, 121])
    (gain,) = compare(CURRENT, [better], Goal())
    assert gain.is_shown
    assert abs(gain.ratio - 1.1) < 1e-6
    assert winner([gain], current_feasible=True) is gain


def test_noise_is_not_shown() -> None:
    (gain,) = compare(CURRENT, [_contestant("A", [120, 85, 100, 110, 95])], Goal())
    assert not gain.is_shown
    assert winner([gain], current_feasible=True) is None


def test_one_round_shows_nothing() -> None:
    (gain,) = compare(CURRENT, [_contestant("A", [500])], Goal())
    assert gain.low is None
    assert not gain.is_shown


def test_the_best_within_the_constraints_wins() -> None:
    goal = Goal(constraints=(Constraint("p99", maximum=0.05),))
    fast = _contestant("A", [220, 176, 264, 198, 242], p99=0.2)
    fair = _contestant("B", [110, 88, 132, 99, 121])
    gains = compare(CURRENT, [fast, fair], goal)
    assert [gain.name for gain in gains] == ["B", "A"]
    best = winner(gains, current_feasible=True)
    assert best is not None
    assert best.name == "B"


def test_a_slower_one_replaces_a_current_one_that_breaks_the_constraints() -> None:
    goal = Goal(constraints=(Constraint("p99", maximum=0.005),))
    slow = _contestant("A", [50, 40, 60, 45, 55], p99=0.001)
    gains = compare(CURRENT, [slow], goal)
    best = winner(gains, current_feasible=False)
    assert best is not None
    assert best.name == "A"


def test_failed_rounds_are_left_out() -> None:
    broken = Contestant("A", (None, {"throughput": 160.0}, None, {"throughput": 180.0}, None))
    (gain,) = compare(CURRENT, [broken], Goal())
    assert abs(gain.ratio - 2) < 1e-6
