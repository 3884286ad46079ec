"""Simulated days: policies, faults, what Prometheus sees, judgement."""

from typing import Any

import numpy as np
import pytest

from conch.base.errors import ConfigError
from conch.domain.arrivals import bursts
from conch.operate.scaling.hpa.spec import Behavior, HpaSpec, MetricSpec, MetricType, ScalingRules, TargetType
from conch.operate.scaling.keda.spec import Fallback, ScaledObjectSpec, Trigger, external
from conch.operate.scaling.simulation.engine import SimulationRun, simulate
from conch.operate.scaling.simulation.judgement import best, flapping, only_rises, remarks
from conch.operate.scaling.simulation.queries import History, MetricDelays, QueryCompiler
from conch.operate.scaling.simulation.queue_model import constant_service
from conch.operate.scaling.simulation.scenario import (
    ColdStart,
    Fault,
    FaultKind,
    Scenario,
    TrafficCurve,
    diurnal,
    from_counts,
    from_curve,
    from_times,
)

HOUR = 3600
SERVICE = constant_service(0.02, 4, 0.5)  # 200 requests/s


def hpa(metric: str, target: float, maximum: int = 10, behavior: Behavior | None = None, minimum: int = 1) -> HpaSpec:
    """Return a policy on an average over the pods."""
    spec = MetricSpec(MetricType.PODS, metric, TargetType.AVERAGE_VALUE, target)
    return HpaSpec(maximum, (spec,), minimum, behavior or Behavior())


def keda(query: str, target: float, **others: Any) -> ScaledObjectSpec:
    """Return a policy of KEDA."""
    trigger = Trigger(query, external("s0-prometheus", target, is_average=True), ignore_null=False)
    return ScaledObjectSpec((trigger,), **{"min_replicas": 1, "max_replicas": 10, "polling_interval_s": 15, **others})


RPS = hpa("conch_requests_per_second", 140)
KEDA_RPS = keda("sum(rate(nv_inference_request_success[1m]))", 140)


def steady(rate: float, seconds: int = 2 * HOUR) -> TrafficCurve:
    """Return traffic of one rate."""
    return TrafficCurve("steady", np.full(seconds, rate))


def run(policy: Any, traffic: TrafficCurve, *faults: Fault, initial: int = 1, **others: Any) -> SimulationRun:
    """Simulate with S1's cold start of 40 s."""
    return simulate("policy", policy, Scenario(traffic, SERVICE, initial_replicas=initial, faults=faults, **others))


def test_replicas_follow_the_load_and_return() -> None:
    load = np.concatenate([np.full(1200, 50.0), np.full(1800, 500.0), np.full(2400, 50.0)])
    for policy in (RPS, KEDA_RPS):
        result = run(policy, TrafficCurve("up and down", load))
        # While the backlog is answered, each replica serves more than its target: some more start for a while.
        assert (result.wanted[1100], result.wanted[2990], result.wanted[-1]) == (1, 4, 1)
        assert 4 <= result.wanted.max() <= 10
        # The metric needs a rate over a minute, the sync 15 s, the start 40 s.
        first = next(event for event in result.events if event.after > 1)
        assert 1200 < first.at_s <= 1290
        assert (result.ready[int(first.at_s) + 39], result.ready[int(first.at_s) + 40]) == (1, first.after)


def test_a_longer_cold_start_misses_more() -> None:
    load = TrafficCurve("jump", np.concatenate([np.full(600, 100.0), np.full(1200, 700.0)]))
    shares = [run(RPS, load, cold_start=ColdStart(load_s=seconds)).miss_share for seconds in (10, 40, 120)]
    assert shares == sorted(shares)
    assert shares[0] < shares[-1]


def test_a_counter_only_scales_up() -> None:
    """The HPA of many tutorials: the average of a counter, such as nv_inference_request_success."""
    day = diurnal(100, 500, peak_h=1, duration_s=9 * HOUR)
    result = run(hpa("nv_inference_request_success", 1000), day)
    assert only_rises(result)
    assert (result.wanted[-1], result.wanted.max()) == (10, 10)
    assert any(remark.startswith("only scales up") for remark in remarks(result))
    following = run(RPS, day, initial=4)
    assert not only_rises(following)
    assert best([result, following]) is following
    assert best([result]) is result


def test_flapping_is_detected_and_named() -> None:
    nervous = Behavior(scale_down=ScalingRules(Behavior().scale_down.policies, stabilization_s=0))
    load = from_curve(bursts(50, 500, 120, 300), 2 * HOUR, "bursts")
    result = run(hpa("conch_requests_per_second", 140, behavior=nervous), load)
    worst = flapping(result.events)
    assert worst is not None
    assert worst.turns >= 4
    assert any(remark.startswith("flapping:") for remark in remarks(result))
    assert flapping(run(RPS, load).events) is None


def test_prometheus_down_scales_nothing_to_zero() -> None:
    """Load falls during an outage of an hour: replicas stay, with KEDA at least at those of the fallback."""
    load = TrafficCurve("fall", np.concatenate([np.full(1800, 500.0), np.full(5400, 5.0)]))
    outage = Fault(FaultKind.PROMETHEUS_DOWN, 1500, HOUR)
    policies = {
        "hpa": RPS,
        "keda": KEDA_RPS,
        "keda to zero": keda("sum(rate(nv_inference_request_success[1m]))", 140, min_replicas=0, cooldown_s=60),
        "fallback": keda("sum(rate(nv_inference_request_success[1m]))", 140, fallback=Fallback(3, 6)),
    }
    for name, policy in policies.items():
        result = run(policy, load, outage, initial=4)
        during = result.wanted[1500 : 1500 + HOUR]
        assert during.min() >= 4, name
        assert during[-1] == (6 if name == "fallback" else 4), name
        assert result.wanted[-1] < 4, name  # afterwards it follows the load again


def test_a_missing_metric_keeps_replicas_and_is_named() -> None:
    missing = Fault(FaultKind.METRIC_MISSING, 1800, 1800)
    result = run(RPS, steady(300), missing, initial=3)
    assert set(result.wanted[1800:3600]) == {3}
    assert result.reasons["FailedGetPodsMetric"] == 1800 / 15
    assert any("could not be read at 120 syncs" in remark for remark in remarks(result))
    # KEDA's default takes an empty result for 0, and scales down.
    lenient = Trigger("sum(rate(nv_inference_request_success[1m]))", external("x", 140, is_average=True))
    down = run(ScaledObjectSpec((lenient,), 1, 10, polling_interval_s=15), steady(300), missing, initial=3)
    assert down.wanted[3500] == 1


def test_a_replica_that_never_becomes_ready_does_not_lead_to_more_and_more() -> None:
    load = TrafficCurve("jump", np.concatenate([np.full(600, 100.0), np.full(3000, 260.0)]))
    fine = run(RPS, load)
    stuck = run(RPS, load, Fault(FaultKind.NEVER_READY, 300, count=1))
    assert fine.wanted[-1] == 2
    # Without its value it counts as idle when scaling up, and at the target when scaling down.
    assert stuck.wanted.max() <= fine.wanted.max() + 1
    assert stuck.ready[-1] == stuck.wanted[-1] - 1
    assert stuck.miss_share > fine.miss_share


def test_killed_replicas_lose_requests_and_drained_ones_do_not() -> None:
    policy = 3
    killed = run(policy, steady(300), Fault(FaultKind.KILL, 1000, count=2), initial=3)
    drained = run(policy, steady(300), Fault(FaultKind.DRAIN, 1000, count=2), initial=3)
    assert killed.lost.sum() > 0
    assert drained.lost.sum() == 0
    for outcome in (killed, drained):
        assert (outcome.ready[999], outcome.ready[1000], outcome.ready[1039], outcome.ready[1040]) == (3, 1, 1, 3)


def test_without_a_replica_requests_fail() -> None:
    result = run(keda("sum(rate(nv_inference_request_success[1m]))", 140, min_replicas=0), steady(10, 600), initial=0)
    assert result.miss_share == 1.0
    assert any("no replica was ready" in remark for remark in remarks(result))


def test_full_queues_reject() -> None:
    result = run(1, steady(300, 600), max_queue=50)
    assert result.max_inside <= 54 + 1e-6
    assert result.lost.sum() == pytest.approx(600 * 100, rel=0.02)


def test_a_day_at_a_million_requests_per_second_is_one_loop_over_seconds() -> None:
    """Pods that are alike are one: what counts is the number of seconds, not of requests or replicas."""
    morning = diurnal(2e5, 1e6, peak_h=2, duration_s=4 * HOUR)
    result = run(hpa("conch_requests_per_second", 140, 9000), morning, initial=6000)
    assert result.wanted.max() > 6500
    assert result.meets_objective


def test_the_best_meets_the_objective_with_the_fewest_replica_hours() -> None:
    runs = [run(count, steady(300, 600), initial=count) for count in (1, 2, 4)]
    assert [outcome.meets_objective for outcome in runs] == [False, True, True]
    assert best(runs) is runs[1]
    assert best(runs[:1]) is runs[0]


def history(seconds: int = 600) -> History:
    """Return two pods with 100 requests/s each, 2 ms in the queue and 20 ms of computing per request."""
    made = History()
    for second in range(seconds):
        made.append(100.0, 0.2, 0.3, 2.0, 100.0, 0.5, float(second), 2.0, 2, 0.5)
    return made


@pytest.mark.parametrize(
    ("query", "value"),
    [
        ("sum(rate(nv_inference_request_success[1m]))", 200.0),
        ("avg(increase(nv_inference_request_success[1m]))", 6000.0),
        ("triton:queue_compute:ratio", 0.1),
        ("conch_requests_per_second", 100.0),
        ("sum(max by (pod) (triton:queue_compute:ratio{job='x'}))", 0.2),
        ("conch:instance_utilization:ratio_rate1m", 0.5),
        ("sum(nv_inference_pending_request_count)", 2 * 585.0),
        ("max(nv_inference_pending_request_count) - 85", 500.0),
        ("predict_linear(nv_inference_pending_request_count[5m], 60)", 659.0),
        ("clamp_min(predict_linear(sum(nv_inference_pending_request_count)[300s:15s], 60), 0)", 2 * 659.0),
        ("avg_over_time(nv_inference_pending_request_count[1m])", 562.5),
        ("count(up) > 1", 2.0),
        ("count(up) > bool 2", 0.0),
        ("nv_inference_request_success", 100.0 * 586 * 0.5),
        ("nv_inference_request_success / 0", None),
        ("(up > 2) or vector(7)", 7.0),
        ("vllm:num_requests_running", 2.0),
    ],
)
def test_queries_return_what_prometheus_would(query: str, value: float | None) -> None:
    compiler = QueryCompiler(history(), SERVICE, MetricDelays())
    got = compiler.compile(query).evaluate(599)
    assert got is None if value is None else got == pytest.approx(value)


def test_values_are_as_old_as_scrapes_rules_and_the_adapter_make_them() -> None:
    pending = "nv_inference_pending_request_count"
    for timing, value in ((MetricDelays(15), 585), (MetricDelays(60), 540), (MetricDelays(15, 15, 40), 555)):
        assert QueryCompiler(history(), SERVICE, timing).compile(pending).evaluate(599) == value


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("sum(", "query 'sum('"),
        ("node_cpu", "the simulation has no metric 'node_cpu'; it has "),
        ("rate(nv_inference_pending_request_count[1m])", "rate needs a counter"),
        ("topk(1, up)", "topk is not supported"),
        ("histogram_quantile(0.9, up)", "histogram_quantile is not supported"),
    ],
)
def test_queries_that_cannot_be_simulated_are_rejected_by_name(query: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        QueryCompiler(history(), SERVICE, MetricDelays()).compile(query)
    assert message in str(raised.value)


def test_keda_accepts_one_series_only() -> None:
    with pytest.raises(ConfigError, match=r"use sum"):
        run(keda("conch_requests_per_second", 140), steady(10, 60))


def test_traffic() -> None:
    day = diurnal(100, 300, peak_h=20)
    assert (day.rates[20 * HOUR], day.rates[8 * HOUR]) == pytest.approx((300, 100))
    noisy = day.with_noise(0.1, 3)
    assert np.array_equal(noisy.rates, day.with_noise(0.1, 3).rates)
    assert noisy.requests == pytest.approx(day.requests, rel=0.05)
    assert float(np.std(noisy.rates / day.rates)) == pytest.approx(0.1, rel=0.3)
    square = from_curve(bursts(10, 100, 60, 600), 1200, "bursts")
    assert [square.rates[at] for at in (0, 539, 540, 599, 600)] == [10, 10, 100, 100, 10]
    assert list(from_times(np.array([0.1, 0.9, 2.5]), "x", 2.0).rates) == [4, 0, 2]
    assert list(from_counts(np.array([20.0, 40.0]), 2, "x").rates) == [10, 10, 20, 20]
    with pytest.raises(ValueError, match="no requests"):
        from_times(np.array([]), "x")
