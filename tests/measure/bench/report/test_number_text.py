"""Numbers with units and intervals."""

import math

import pytest

from conch.measure.bench.measurement import Estimate
from conch.measure.bench.report.number_text import (
    BYTES,
    PERCENT,
    PLAIN,
    SECONDS,
    format_change,
    format_estimate,
    format_value,
)


@pytest.mark.parametrize(
    ("estimate", "text"),
    [
        (Estimate(0.0123, 0.0119, 0.0127), "12.3 ms ±0.4"),
        (Estimate(0.0123, 0.0119, 0.0145), "12.3 ms −0.4 +2.2"),
        (Estimate(0.012345678), "12.3 ms"),
        (Estimate(0.99996), "1.00 s"),
        (Estimate(0.0000871, 0.0000869, 0.0000873), "87.1 µs ±0.2"),
        (Estimate(0.0, 0.0, 0.0), "0 s"),
        (Estimate(1.0, 1.0, 1.0), "1.00 s"),
        (Estimate(math.nan), "–"),
        (None, "–"),
    ],
)
def test_times(estimate: Estimate | None, text: str) -> None:
    assert format_estimate(estimate, SECONDS) == text


@pytest.mark.parametrize(
    ("estimate", "text"),
    [
        (Estimate(12345.6, 12000, 12700), "12,300 ±400"),
        (Estimate(23.14, 23.08, 23.2), "23.14 ±0.06"),
        (Estimate(2901.4), "2,900"),
        (Estimate(700, 400, 1000), "700 ±300"),
    ],
)
def test_rates(estimate: Estimate, text: str) -> None:
    assert format_estimate(estimate, PLAIN) == text


def test_other_units() -> None:
    assert format_value(0.7891, PERCENT) == "78.9 %"
    assert format_value(35 << 30, BYTES) == "35.0 GiB"
    assert format_value(None, BYTES) == "–"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (Estimate(0.031, 0.012, 0.05), "+3.1 % (+1.2 to +5.0 %)"),
        (Estimate(-0.07, -0.0712, -0.0688), "−7.00 % (−7.12 to −6.88 %)"),
        (Estimate(0.0001, -0.01, 0.01), "0.0 % (−1.0 to +1.0 %)"),
        (Estimate(0.05), "+5.0 %"),
    ],
)
def test_changes(change: Estimate, text: str) -> None:
    assert format_change(change) == text


def test_a_share_does_not_exceed_100_percent() -> None:
    assert format_estimate(Estimate(1.0, 0.7, 1.0), PERCENT) == "100 % −30"
    assert format_estimate(Estimate(1.0, 1.0, 1.0), PERCENT) == "100 %"
