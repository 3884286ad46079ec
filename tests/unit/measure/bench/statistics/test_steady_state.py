import numpy as np
import pytest

from conch.measure.bench.records import RequestOutcome
from conch.measure.bench.statistics.change_point import CRITICAL_CHANGE, find_change, head_statistic, trend_statistic
from conch.measure.bench.statistics.steady_state import steadiness, steady_since
from conch.measure.bench.statistics.stopping_rule import StoppingRule
from tests.unit.measure.bench.statistics.recorded import START_NS, records_of


def test_a_step_is_found_where_it_is() -> None:
    rng = np.random.default_rng(0)
    change = find_change(np.concatenate((np.full(20, 1.0), np.full(40, 2.0))) + 0.05 * rng.standard_normal(60))
    assert change.index == 20
    assert change.statistic > CRITICAL_CHANGE
    assert (change.before, change.after) == pytest.approx((1, 2), abs=0.05)
    assert find_change(np.ones(5)) is None
    assert find_change(np.ones(20)).statistic == 0


@pytest.mark.parametrize("memory", [0.0, 0.6])
def test_noise_with_memory_is_not_a_change(memory: float) -> None:
    rng = np.random.default_rng(1)
    noise = rng.standard_normal((300, 120))
    for column in range(1, 120):
        noise[:, column] += memory * noise[:, column - 1]
    series = noise[:, 60:]
    assert np.mean([find_change(values).statistic > CRITICAL_CHANGE for values in series]) < 0.03
    assert np.mean([abs(trend_statistic(values)) > 1 for values in series]) < 0.04
    assert np.mean([abs(head_statistic(values)) > 1 for values in series]) < 0.04


def test_a_line_is_a_trend() -> None:
    assert trend_statistic(np.arange(30.0) + np.random.default_rng(0).standard_normal(30)) > 1
    assert trend_statistic(np.ones(30)) == 0
    assert abs(trend_statistic(-np.arange(30.0))) > 1


def test_steadiness_states_the_trend_in_numbers() -> None:
    done = np.arange(0, 60, 0.01)
    rng = np.random.default_rng(0)
    steady = steadiness(done, 0.02 * (1 + done / 60) * rng.lognormal(0, 0.1, len(done)), (0, 60))
    assert steady.since_s is None
    assert steady.latency_trend == pytest.approx(1, abs=0.15)
    assert steady.throughput_trend == pytest.approx(0, abs=0.01)
    assert "over it" in steady.trend_text


def test_a_warm_up_ends_where_latency_settles() -> None:
    at = np.arange(0, 20, 0.01)
    records = records_of(at, np.where(at < 5, 0.2, 0.02) * np.random.default_rng(0).lognormal(0, 0.2, len(at)))
    now = START_NS + 20_000_000_000
    assert (steady_since(records, START_NS, now) - START_NS) * 1e-9 == pytest.approx(5, abs=0.7)


def test_too_few_requests_say_nothing() -> None:
    assert steady_since(records_of([0.1] * 9, 0.01), START_NS, START_NS + 10_000_000_000) is None
    assert steady_since(records_of([], []), START_NS, START_NS + 10_000_000_000) is None
    failed = records_of(np.arange(100) / 10, 0.01, RequestOutcome.SERVER_ERROR)
    assert steady_since(failed, START_NS, START_NS + 10_000_000_000) is None


def test_the_stopping_rule_needs_enough_requests_and_looks_seldom() -> None:
    rng = np.random.default_rng(0)
    records = records_of(np.arange(0, 100, 0.01), 0.02 * rng.lognormal(0, 0.3, 10_000))
    rule = StoppingRule(95, 0.05)
    stopped = None
    for second in range(1, 100):
        part = records[records["done_ns"] < START_NS + second * 1_000_000_000]
        if rule.is_met(part, START_NS, START_NS + second * 1_000_000_000):
            stopped = second
            break
    assert stopped is not None
    assert stopped >= 4
    assert rule.looks < 15
    assert (rule.last.high - rule.last.low) / 2 <= 0.05 * rule.last.value
    with pytest.raises(ValueError, match="such as p99"):
        StoppingRule(100, 0.05)


def test_the_stopping_rule_does_not_stop_early_on_noise() -> None:
    rule = StoppingRule(99, 0.01)
    values = np.random.default_rng(0).pareto(1.5, 5000)
    assert not rule.look(values, np.arange(5000) / 100, 50.0)
    assert not rule.due(5100)
