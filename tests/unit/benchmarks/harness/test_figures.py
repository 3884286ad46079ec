import pytest
from benchmarks.harness.figures import ALONE, CONCH, TRITON, Figure, Spread, Target


def figure(higher_is_better: bool = True, **rounds: list[float]) -> Figure:
    return Figure("rate", "answers/s", higher_is_better, rounds)


def test_a_ratio_is_taken_within_each_round() -> None:
    # The machine was twice as slow in the second round; neither server was better there.
    measured = figure(conch=[200, 100, 330], triton=[100, 50, 110])
    assert measured.ratio(CONCH, to=TRITON) == Spread(median=2.0, low=2.0, high=3.0)


def test_a_round_that_one_of_them_has_not_done_counts_for_neither() -> None:
    assert figure(conch=[200, 400], triton=[100]).ratio(CONCH, to=TRITON) == Spread(2.0, 2.0, 2.0)


def test_there_is_no_ratio_to_what_was_not_measured() -> None:
    assert figure(conch=[200]).ratio(CONCH, to=TRITON) is None
    assert figure(conch=[200], triton=[0]).ratio(CONCH, to=TRITON) is None
    assert figure(conch=[200]).spread(TRITON) is None


def test_the_median_of_an_even_number_of_rounds_lies_between_the_middle_ones() -> None:
    assert figure(conch=[4, 1, 2, 3]).spread(CONCH) == Spread(median=2.5, low=1, high=4)


@pytest.mark.parametrize(("bound", "reached"), [(1.5, True), (2.0, True), (2.1, False)])
def test_more_than_the_bound_is_wanted_where_more_is_better(bound: float, reached: bool) -> None:
    assert Target("rate", bound).reached(figure(conch=[200], triton=[100])) is reached


@pytest.mark.parametrize(("bound", "reached"), [(0.4, False), (0.5, True), (0.6, True)])
def test_less_than_the_bound_is_wanted_where_less_is_better(bound: float, reached: bool) -> None:
    assert Target("rate", bound).reached(figure(False, conch=[50], triton=[100])) is reached


def test_a_target_beside_no_server_looks_at_no_server() -> None:
    measured = figure(conch=[80], triton=[10], alone=[100])
    assert Target("rate", 0.85, beside=ALONE).reached(measured) is False
    assert Target("rate", 0.85, beside=TRITON).reached(measured) is True


def test_a_target_that_was_not_measured_is_neither_reached_nor_missed() -> None:
    assert Target("rate", 1.0).reached(figure(conch=[1])) is None
