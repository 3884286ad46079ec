import pytest

from conch.measure.tune.objective import Constraint, Goal, shown

FAST = {"throughput": 100.0, "p99": 0.040}
FASTER = {"throughput": 120.0, "p99": 0.080}


def test_without_constraints_the_objective_decides() -> None:
    goal = Goal()
    assert (goal.score(FASTER) or 0) > (goal.score(FAST) or 0)


def test_outside_of_a_constraint_is_worse_than_anything_inside() -> None:
    goal = Goal(constraints=(Constraint("p99", maximum=0.05),))
    assert (goal.score(FASTER) or 0) < (goal.score({"throughput": 0.001, "p99": 0.01}) or 0)
    assert not goal.is_feasible(FASTER)


def test_the_nearer_to_a_constraint_the_better() -> None:
    goal = Goal(constraints=(Constraint("p99", maximum=0.05), Constraint("throughput", minimum=50)))
    assert (goal.score(FASTER) or 0) > (goal.score({**FASTER, "p99": 0.2}) or 0)


def test_unknown_figures() -> None:
    goal = Goal(("gpu_memory",), (Constraint("p99", maximum=1),))
    assert goal.score(FAST) is None
    assert goal.unknown(FAST) == ["gpu_memory"]


@pytest.mark.parametrize(
    ("metric", "value", "text"),
    [
        ("p99", 0.0123, "12.3 ms"),
        ("throughput", 1234.5, "1234/s"),
        ("throughput", 12345.6, "12346/s"),
        ("cpu_memory", 2.5e9, "2500 MB"),
    ],
)
def test_figures_have_units(metric: str, value: float, text: str) -> None:
    assert shown(metric, value) == text
