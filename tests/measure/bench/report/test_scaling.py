"""Scaling efficiency and saturation."""

from dataclasses import replace

import pytest

from conch.measure.bench.measurement import Estimate, Level, Measurement
from conch.measure.bench.report.scaling import find_saturation, scaling
from tests.measure.bench.report.samples import certificate, measurement, s0_certificate


def test_efficiency_of_the_published_table() -> None:
    levels = scaling(s0_certificate().measurements)
    assert [level.speedup for level in levels] == pytest.approx([1, 4.43, 23.6], abs=0.05)
    assert [level.efficiency for level in levels] == pytest.approx([1, 0.886, 0.785], abs=0.001)


def test_saturation_is_the_lowest_level_with_nearly_the_highest_throughput() -> None:
    saturation = find_saturation(certificate(1, 2, 4, 8, 16, 32, 64).measurements)
    assert saturation is not None
    assert saturation.reached
    assert saturation.level == "16"
    assert saturation.knee == pytest.approx(6.5, abs=0.5)  # six workers


def test_saturation_is_not_reached_while_throughput_grows() -> None:
    saturation = find_saturation(certificate(1, 2, 4).measurements)
    assert saturation is not None
    assert not saturation.reached


def rate(offered: float, achieved: float) -> Measurement:
    level = Level("rate", offered, f"{offered:g}/s")
    return replace(measurement(1, requests=50), level=level, throughput=Estimate(achieved))


def test_the_rate_that_a_server_keeps_up_with() -> None:
    levels = [rate(100, 100), rate(200, 199), rate(400, 250)]
    saturation = find_saturation(levels)
    assert saturation is not None
    assert (saturation.reached, saturation.level) == (True, "200/s")
    assert [level.efficiency for level in scaling(levels)] == [1, 0.995, 0.625]


@pytest.mark.parametrize("levels", [(), (1,)])
def test_one_level_has_no_saturation(levels: tuple[int, ...]) -> None:
    assert find_saturation(certificate(*levels).measurements) is None


def test_without_a_success_there_is_no_scaling() -> None:
    levels = [replace(level, throughput=Estimate(0.0)) for level in certificate(1, 2).measurements]
    assert find_saturation(levels) is None
    assert {level.efficiency for level in scaling(levels)} == {None}


def test_a_ramp_has_no_efficiency() -> None:
    """Its highest rate is not the rate that was offered."""
    level = Level("curve", 200.0, "ramp 10:200:3s")
    assert scaling([replace(measurement(1, requests=50), level=level)])[0].efficiency is None
