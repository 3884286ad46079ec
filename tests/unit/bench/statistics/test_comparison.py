from dataclasses import replace

import numpy as np
import pytest

from conch.bench.measurement import Effect, Estimate, Level, Measurement, Note
from conch.bench.statistics.comparison import compare_rounds, describe, effect, verdict_text
from conch.bench.statistics.gate import GateCondition, compare, parse_condition
from conch.bench.statistics.quantities import error_ratio, quantity_name, value_of
from conch.bench.statistics.summary import summarize
from tests.unit.bench.statistics.recorded import NO_CHUNKS, records_of, settings_of


def measured(factor: float = 1.0, seed: int = 0, count: int = 10_000, label: str = "100/s") -> Measurement:
    rng = np.random.default_rng(seed)
    records = records_of(np.arange(count) / 100, factor * 0.02 * rng.lognormal(0, 0.3, count))
    found = summarize(records, NO_CHUNKS, settings_of(count / 100, slo={"latency": 0.1}))
    return replace(found, level=Level("rate", 100, label))


def effects(factor: float, rounds: int) -> dict[str, Effect]:
    a = [measured(1.0, seed, 2000) for seed in range(rounds)]
    b = [measured(factor, 100 + seed, 2000) for seed in range(rounds)]
    return {each.quantity: each for each in compare_rounds(a, b)}


@pytest.mark.parametrize("rounds", [1, 2, 6])
def test_a_slower_server_is_worse(rounds: int) -> None:
    found = effects(1.2, rounds)
    assert found["p50"].verdict == "worse"
    assert found["p50"].change.low <= 0.2 <= found["p50"].change.high
    assert found["throughput"].verdict == "undecided"
    assert found["p50"].b.value / found["p50"].a.value == pytest.approx(1 + found["p50"].change.value)
    assert "B is worse" in verdict_text(list(found.values()))
    assert describe(found["p50"]).startswith("p50: +")


def test_a_faster_server_is_better_and_an_equal_one_undecided() -> None:
    assert effects(0.8, 5)["p50"].verdict == "better"
    equal = effects(1.0, 5)
    assert equal["p50"].verdict == "undecided"
    assert verdict_text([equal["p50"]]).startswith("no difference is shown: p50")


def test_rounds_must_match() -> None:
    with pytest.raises(ValueError, match="same number of rounds, got 1 and 2"):
        compare_rounds([measured()], [measured(), measured()])


def test_a_quantity_without_interval_is_undecided() -> None:
    few = measured(count=30)
    found = effect("p99.9", [few], [few])
    assert found.verdict == "undecided"
    assert "too few requests" in describe(found)
    assert effect("ttft_p50", [few], [few]) is None


def test_error_ratio_is_compared_by_its_difference() -> None:
    bad = replace(measured(), outcomes={"ok": 9000, "server_error": 1000, "cancelled": 500})
    assert error_ratio(bad).value == 0.1
    found = effect("error_ratio", [measured()], [bad])
    assert found.change.value == pytest.approx(0.1)
    assert found.verdict == "worse"
    assert "points" in describe(found)
    assert error_ratio(replace(measured(), outcomes={})) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("p99 > +5 %", GateCondition("p99 > +5 %", "p99", True, "ratio", 0.05)),
        ("p99.9>5%", GateCondition("p99.9>5%", "p99.9", True, "ratio", 0.05)),
        ("throughput < -3%", GateCondition("throughput < -3%", "throughput", False, "ratio", -0.03)),
        ("TTFT > 200ms", GateCondition("TTFT > 200ms", "ttft_p50", True, "value", 0.2)),
        ("itl p99 > +1ms", GateCondition("itl p99 > +1ms", "itl_p99", True, "difference", 0.001)),
        ("errors > 1 %", GateCondition("errors > 1 %", "error_ratio", True, "value", 0.01)),
        ("errors > +1 %", GateCondition("errors > +1 %", "error_ratio", True, "difference", 0.01)),
        ("mean > -0.5us", GateCondition("mean > -0.5us", "mean", True, "difference", -5e-7)),
        ("goodput < 95", GateCondition("goodput < 95", "goodput", False, "value", 95)),
        ("max > 2s", GateCondition("max > 2s", "max", True, "value", 2)),
    ],
)
def test_conditions(text: str, expected: GateCondition) -> None:
    found = parse_condition(text)
    assert replace(found, threshold=0) == replace(expected, threshold=0)
    assert found.threshold == pytest.approx(expected.threshold)


@pytest.mark.parametrize(
    "text", ["", "p99", "p99 5%", "p99 = 5%", "px > 5%", "p99 > 5", "p99 > 5 parsecs", "goodput < 3ms", "p50 < -100%"]
)
def test_bad_conditions_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a|not valid"):
        parse_condition(text)


def check(text: str, a: Measurement, b: Measurement) -> str:
    (result,) = compare([a], [b], [parse_condition(text)])
    assert result.message
    return result.verdict


def test_the_gate_fails_beyond_doubt_only() -> None:
    a, same, slow = measured(), measured(seed=1), measured(1.3, seed=2)
    assert check("p99 > +5 %", a, same) == "holds"
    assert check("p99 > +5 %", a, slow) == "fails"
    assert check("p99 > +29 %", a, slow) in ("holds", "undecided")
    assert check("p99 < -5 %", a, measured(0.7)) == "fails"
    assert check("p50 > 25ms", a, slow) == "fails"
    assert check("p50 > 20.01ms", a, measured(1.003, seed=5)) in ("holds", "undecided")
    assert check("p50 > +2ms", a, slow) == "fails"
    assert check("throughput < 90", a, same) == "holds"
    assert check("throughput < 110", a, same) == "fails"
    assert check("errors > 1 %", a, replace(same, outcomes={"ok": 900, "timeout": 100})) == "fails"
    assert check("errors > +1 %", a, same) == "holds"
    assert check("max > 1ms", a, same) == "fails"


def test_undecided_says_why() -> None:
    a, few = measured(), measured(1.5, count=100)
    (result,) = compare([a], [few], [parse_condition("p99.9 > +5 %")])
    assert (result.verdict, result.message.endswith("too few requests")) == ("undecided", True)
    (missing,) = compare([a], [a], [parse_condition("ttft > +5 %")])
    assert missing.message == "A or B has no value of ttft_p50"
    bad = replace(a, notes=(Note("client-bottleneck", "invalid", "the client was the bottleneck"),))
    (invalid,) = compare([bad], [measured(2.0)], [parse_condition("p99 > +5 %")])
    assert (invalid.verdict, invalid.message) == ("undecided", "not comparable: the client was the bottleneck")


def test_levels_are_matched() -> None:
    a = [measured(label="1"), measured(label="2")]
    results = compare(a, [measured(1.5, label="2")], [parse_condition("p50 > +5%"), parse_condition("p90 > +5%")])
    assert [(each.level, each.verdict) for each in results] == [("2", "fails"), ("2", "fails")]
    with pytest.raises(ValueError, match=r"no level in common: A has 1, 2, B has 3"):
        compare(a, [measured(label="3")], [parse_condition("p50 > +5%")])
    assert compare(a, a, []) == ()


def test_names_of_quantities() -> None:
    a = measured()
    assert quantity_name(" P99.9 ") == "p99.9"
    assert value_of("service_p50", a) == a.service_latency.percentiles["50"]
    assert value_of("max", a) == Estimate(a.latency.max)
    assert value_of("mean", replace(a, latency=None)) is None
    assert value_of("input_rate", a) is None
    with pytest.raises(ValueError, match="not a quantity"):
        value_of("speed", a)
