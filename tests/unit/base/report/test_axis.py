"""Axes: units, ticks and positions."""

import math

import pytest

from conch.base.report.axis import Axis, clock, log_ticks, number, percent, round_ticks, round_times, seconds


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (number(0), "0"),
        (number(0.25), "0.25"),
        (number(12.345), "12.3"),
        (number(1250), "1,250"),
        (number(9999.6), "10,000"),
        (number(25_000), "25k"),
        (number(-3.5e6), "-3.5M"),
        (seconds(0), "0 s"),
        (seconds(0.0125), "12.5 ms"),
        (seconds(0.9999), "1 s"),
        (seconds(2e-6), "2 µs"),
        (percent(0.125), "12.5 %"),
        (clock(0), "0"),
        (clock(45), "45 s"),
        (clock(90), "1:30 min"),
        (clock(5400), "1:30 h"),
        (clock(21600), "6 h"),
    ],
)
def test_values_have_fitting_units(text: str, expected: str) -> None:
    assert text == expected


def test_ticks_are_round() -> None:
    assert round_ticks(0, 10, 5) == [0, 2, 4, 6, 8, 10]
    assert round_ticks(-0.1, 0.1, 4) == pytest.approx([-0.1, -0.05, 0, 0.05, 0.1])
    assert log_ticks(1, 1000, 5) == [1, 10, 100, 1000]
    assert log_ticks(0.9, 22, 5) == [1, 2, 5, 10, 20]
    assert log_ticks(8, 26, 5) == [10, 15, 20, 25]
    assert round_times(86400, 6) == [0, 21600, 43200, 64800, 86400]
    assert round_times(150, 6) == [0, 30, 60, 90, 120, 150]


def test_an_axis_reaches_its_values() -> None:
    scale = Axis().scale([2.0, 10.0], 5)
    assert scale.low == 0
    assert scale.high > 10
    assert scale.share(scale.high) == 1
    logarithmic = Axis(log=True, tight=True).scale([0.0, 1.0, 100.0, math.nan], 5)
    assert (logarithmic.low, logarithmic.high, logarithmic.share(10)) == (1, 100, 0.5)
    assert not logarithmic.shows(0)
    assert logarithmic.share(1000) == 1


@pytest.mark.parametrize("values", [[], [math.nan], [0.0], [5.0, 5.0], [-3.0, -1.0]])
@pytest.mark.parametrize("log", [False, True])
def test_any_values_have_an_axis(values: list[float], *, log: bool) -> None:
    scale = Axis(log=log).scale(values, 5)
    assert scale.low < scale.high
    assert scale.ticks
    assert all(0 <= scale.share(value) <= 1 for value in values if scale.shows(value))
