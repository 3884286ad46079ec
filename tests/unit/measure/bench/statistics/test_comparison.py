from dataclasses import replace

import numpy as np
import pytest

from conch.measure.bench.measurement import Effect, Level, Measurement
from conch.measure.bench.statistics.comparison import compare_rounds, describe, effect, verdict_text
from conch.measure.bench.statistics.summary import summarize
from tests.unit.measure.bench.statistics.recorded import NO_CHUNKS, records_of, settings_of


def measured(factor: float = 1.0, seed: int = 0, count: int = 10_000, label: str = "100/s") -> Measurement:
    rng = np.random.default_rng(seed)
    records = records_of(np.arange(count) / 100, factor * 0.02 * rng.lognormal(0, 0.3, count))
    measurement = summarize(records, NO_CHUNKS, settings_of(count / 100, slo={"latency": 0.1}))
    return replace(measurement, level=Level("rate", 100, label))


def effects(factor: float, rounds: int) -> dict[str, Effect]:
    a = [measured(1.0, seed, 2000) for seed in range(rounds)]
    b = [measured(factor, 100 + seed, 2000) for seed in range(rounds)]
    return {comparison.quantity: comparison for comparison in compare_rounds(a, b)}


@pytest.mark.parametrize("rounds", [1, 2, 6])
def test_a_slower_server_is_worse(rounds: int) -> None:
    by_quantity = effects(1.2, rounds)
    assert by_quantity["p50"].verdict == "worse"
    assert by_quantity["p50"].change.low <= 0.2 <= by_quantity["p50"].change.high
    assert by_quantity["throughput"].verdict == "undecided"
    assert by_quantity["p50"].b.value / by_quantity["p50"].a.value == pytest.approx(1 + by_quantity["p50"].change.value)
    assert "B is worse" in verdict_text(list(by_quantity.values()))
    assert describe(by_quantity["p50"]).startswith("p50: +")


def test_a_faster_server_is_better_and_an_equal_one_undecided() -> None:
    assert effects(0.8, 5)["p50"].verdict == "better"
    equal = effects(1.0, 5)
    assert equal["p50"].verdict == "undecided"
    assert verdict_text(list(equal.values())).startswith("p99: ")
    assert verdict_text(list(equal.values())).endswith("no difference is shown")
    assert verdict_text([]) == "no quantity was measured on both sides"


def test_rounds_must_match() -> None:
    with pytest.raises(ValueError, match="same number of rounds, got 1 and 2"):
        compare_rounds([measured()], [measured(), measured()])


def test_a_quantity_without_interval_is_undecided() -> None:
    few = measured(count=30)
    compared = effect("p99.9", [few], [few])
    assert compared.verdict == "undecided"
    assert "too few requests" in describe(compared)
    assert effect("ttft_p50", [few], [few]) is None


def test_error_ratio_is_compared_by_its_difference() -> None:
    bad = replace(measured(), requests=10_000, outcomes={"ok": 9000, "server_error": 1000})
    compared = effect("error_ratio", [measured()], [bad])
    assert compared.change.value == pytest.approx(0.1)
    assert compared.verdict == "worse"
    assert "points" in describe(compared)
