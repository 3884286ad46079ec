"""Intervals and ranges are shortened by one factor."""

import pytest

from conch.operate.fleet.timing import ClusterClock, Timing
from conch.operate.monitoring.rules.shipped_alerts import QUEUE_COMPUTE, recording_rules


def test_ranges_of_the_shipped_rules_are_shortened() -> None:
    rules = {rule.name: rule.expr for rule in Timing(6).shortened_rules(recording_rules()).rules}
    assert rules[QUEUE_COMPUTE] == (
        "rate(nv_inference_queue_duration_us[10s]) / clamp_min(rate(nv_inference_compute_infer_duration_us[10s]), 1)"
    )
    assert rules.keys() == {rule.name for rule in recording_rules().rules}


def test_speed_1_changes_nothing() -> None:
    assert Timing().shortened_rules(recording_rules()) == recording_rules()


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        ("max by (pod) (x)", "max by (pod) (x)"),
        ("sum by (pod) (rate(x[1m]))", "sum by (pod) (rate(x[3s]))"),
        ("max_over_time(rate(x[1m])[5m:])", "max_over_time(rate(x[3s])[15s:])"),
        ("predict_linear(sum(x)[5m:20s], 60)", "predict_linear(sum(x)[15s:1s], 3)"),
    ],
)
def test_ranges_of_a_query(expr: str, expected: str) -> None:
    assert Timing(20).shortened_query(expr) == expected


def test_intervals_are_written_in_milliseconds() -> None:
    assert Timing(20).shortened(6) == "300ms"
    assert Timing(60).shortened(0.001) == "1ms"


def test_the_clock_of_the_cluster_runs_faster() -> None:
    now = iter([100.0, 103.0, 103.0])
    clock = ClusterClock(Timing(5), lambda: next(now))
    assert (clock.elapsed_s, clock.now_s) == (3.0, 15.0)
