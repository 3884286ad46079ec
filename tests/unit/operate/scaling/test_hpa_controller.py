# ruff: noqa: E501 one vector a line
"""The control loop of the HPA: vectors of upstream's horizontal_test.go by name, and properties."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conch.operate.scaling.autoscaler import MetricReading, Pod, PodPhase, ScalingDecision
from conch.operate.scaling.hpa.controller import HpaController
from conch.operate.scaling.hpa.spec import (
    Behavior,
    HpaSettings,
    HpaSpec,
    MetricSpec,
    MetricType,
    PolicyType,
    ScalingPolicy,
    ScalingRules,
    TargetType,
)

SETTINGS = HpaSettings(cpu_initialization_period_s=120, initial_readiness_delay_s=10, scale_to_zero=True)
NOW_S = 10_000.0
QPS = MetricSpec(MetricType.PODS, "qps", TargetType.AVERAGE_VALUE, 15.0)
EXTERNAL = MetricSpec(MetricType.EXTERNAL, "qps", TargetType.VALUE, 0.1)
BROKEN = MetricReading(error="unable to get external metric: something went wrong")
SEVENFOLD = Behavior(scale_up=ScalingRules((ScalingPolicy(PolicyType.PERCENT, 700, 60),), 0))


def cpu(target: int) -> MetricSpec:
    """Return a metric of CPU utilization."""
    return MetricSpec(MetricType.RESOURCE, "cpu", TargetType.UTILIZATION, target)


def pods(requests: Sequence[float]) -> list[Pod]:
    """Return pods with these requests of CPU."""
    return [Pod(f"pod-{index}", requests={"cpu": request}) for index, request in enumerate(requests)]


def levels(*thousandths: int) -> MetricReading:
    """Return the values of pods."""
    return MetricReading(by_pod={f"pod-{index}": thousandth / 1000 for index, thousandth in enumerate(thousandths)})


# Name, bounds, replicas, metrics, readings, requests, behavior, desired, reason of a condition.
VECTORS = [
    ("SuperfluousMetrics", (2, 6), 4, [cpu(100)], [levels(4000, 9500, 3000, 7000, 3200, 2000)], [1.0] * 4, None, 6, "TooManyReplicas"),
    ("EmptyMetrics", (2, 6), 4, [cpu(100)], [MetricReading(error="no metrics returned from resource metrics API")], [1.0] * 4, None, 4, "FailedGetResourceMetric"),
    ("EventCreated", (1, 5), 1, [cpu(50)], [levels(200)], [0.2], None, 2, "ValidMetricFound"),
    ("EventNotCreated", (1, 5), 2, [cpu(50)], [levels(200, 200)], [0.4] * 2, None, 2, "ReadyForNewScale"),
    ("UpscaleCap", (1, 100), 3, [cpu(10)], [levels(100, 200, 300)], [0.1] * 3, SEVENFOLD, 24, "ScaleUpLimit"),
    ("UpscaleCapGreaterThanMaxReplicas", (1, 20), 3, [cpu(10)], [levels(100, 200, 300)], [0.1] * 3, SEVENFOLD, 20, "TooManyReplicas"),
    ("MoreReplicasThanSpecNoScale", (1, 8), 4, [cpu(50)], [levels(500, 500, 500, 500, 500)], [1.0] * 5, None, 4, "ReadyForNewScale"),
    ("NoBackoffUpscaleCM", (1, 5), 3, [QPS], [levels(20000, 10000, 30000)], [1.0] * 3, None, 4, "DesiredWithinRange"),
    ("NoBackoffUpscaleCMNoBackoffCpu", (1, 5), 3, [cpu(10), QPS], [levels(20000, 10000, 30000), levels(20000, 10000, 30000)], [1.0] * 3, None, 5, "TooManyReplicas"),
    ("StabilizeDownscale", (1, 5), 4, [cpu(100)], [levels(50, 50, 50)], [0.1] * 3, None, 4, "ScaleDownStabilized"),
    ("ScaleUpRCImmediately", (2, 6), 1, [cpu(80)], [levels(0, 0, 0, 0)], [1.0] * 4, None, 2, None),
    ("ScaleDownRCImmediately", (2, 5), 6, [cpu(50)], [levels(8000, 9500, 1000)], [0.9, 1.0, 1.1], None, 5, None),
    ("ScaleUpOneMetricEmpty", (2, 6), 3, [cpu(30), EXTERNAL], [levels(300, 400, 500), BROKEN], [1.0] * 3, None, 4, "ValidMetricFound"),
    ("NoScaleDownOneMetricEmpty", (2, 6), 5, [cpu(50), EXTERNAL], [levels(100, 300, 500, 250, 250), BROKEN], [1.0] * 5, None, 5, "FailedGetExternalMetric"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "bounds", "replicas", "metrics", "readings", "requests", "behavior", "desired", "reason"),
    VECTORS,
    ids=[vector[0] for vector in VECTORS],
)
def test_upstream_vectors(name, bounds, replicas, metrics, readings, requests, behavior, desired, reason) -> None:  # type: ignore[no-untyped-def]
    controller = HpaController(HpaSpec(bounds[1], tuple(metrics), bounds[0], behavior), SETTINGS)
    decision = controller.sync(NOW_S, replicas, pods(requests), readings)
    assert decision.desired == desired
    assert reason is None or reason in {condition.reason for condition in decision.conditions}


def test_missing_metrics_scale_down_after_the_window() -> None:
    """TestMissingMetrics and TestMissingReports, whose log of recommendations is empty."""
    for requests, target, values, desired in (([1.0] * 4, 100, (400, 95), 3), ([0.2], 50, (200,), 2)):
        controller = HpaController(HpaSpec(6, (cpu(target),)), SETTINGS)
        controller.sync(0, 4, pods(requests), [BROKEN])
        assert controller.sync(NOW_S, 4, pods(requests), [levels(*values)]).desired == desired


def test_zero_replicas_disable_scaling_unless_the_minimum_is_zero() -> None:
    """TestScaleUpFromZeroCMObject and the condition ScalingDisabled."""
    metric = MetricSpec(MetricType.OBJECT, "qps", TargetType.VALUE, 15.0, described_object=("Deployment", "x"))
    reading = [MetricReading(value=20.0)]
    assert HpaController(HpaSpec(6, (metric,), 1), SETTINGS).sync(NOW_S, 0, [], reading).reason == "ScalingDisabled"
    decision = HpaController(HpaSpec(6, (metric,), 0), SETTINGS).sync(NOW_S, 0, [], reading)
    assert (decision.desired, decision.reason) == (2, "SuccessfulRescale")
    without_gate = HpaController(HpaSpec(6, (metric,), 0), HpaSettings())
    assert without_gate.sync(NOW_S, 0, [], reading).desired == 0
    assert without_gate.spec.min_replicas == 1


def test_the_direction_of_a_tolerance() -> None:
    """TestScaleUpWithTolerance and TestScaleDownWithTolerance in spirit: 5 % more scales up at a tolerance of 1 %."""
    eager = ScalingRules((ScalingPolicy(PolicyType.PERCENT, 100, 15),), 0, tolerance=0.01)
    for behavior, value, desired in (
        (Behavior(scale_up=eager), 15.75, 11),
        (Behavior(scale_down=eager), 15.75, 10),
        (Behavior(scale_down=eager), 14.25, 10),
    ):
        controller = HpaController(HpaSpec(20, (QPS,), 1, behavior), SETTINGS)
        assert run(controller, [value] * 1, replicas=10)[-1].desired == desired
    down = HpaController(HpaSpec(20, (QPS,), 1, Behavior(scale_down=eager)), SETTINGS)
    assert run(down, [13.4, 13.4], replicas=10)[-1].desired == 9


def run(controller: HpaController, values: Sequence[float], replicas: int) -> list[ScalingDecision]:
    """Sync every 15 s, with all pods at the value."""
    decisions = []
    for index, value in enumerate(values):
        seen = [Pod(f"pod-{number}") for number in range(replicas)]
        reading = MetricReading(by_pod={pod.name: value for pod in seen})
        decisions.append(controller.sync(NOW_S + 15 * index, replicas, seen, [reading]))
        replicas = decisions[-1].desired
    return decisions


def test_a_pod_that_never_becomes_ready_damps_the_scale_up() -> None:
    """Its value counts as 0: two pods at twice the target and one pending pod ask for 4 replicas, not for 6."""
    seen = [Pod("a"), Pod("b"), Pod("c", PodPhase.PENDING, ready=False)]
    reading = MetricReading(by_pod={"a": 30.0, "b": 30.0})
    decision = HpaController(HpaSpec(20, (QPS,)), SETTINGS).sync(NOW_S, 3, seen, [reading])
    assert decision.desired == 4


def test_a_missing_metric_keeps_the_replicas_and_is_named() -> None:
    controller = HpaController(HpaSpec(20, (QPS,)), SETTINGS)
    for at_s in range(0, 3600, 15):
        decision = controller.sync(NOW_S + at_s, 7, pods([1.0] * 7), [MetricReading(error="unable to get metric qps")])
        assert (decision.desired, decision.reason) == (7, "FailedGetPodsMetric")
        assert decision.message == "the HPA was unable to compute the replica count: unable to get metric qps"
        assert decision.usage == (None,)


def test_values_without_any_ready_pod_are_invalid() -> None:
    controller = HpaController(HpaSpec(20, (QPS,)), SETTINGS)
    decision = controller.sync(NOW_S, 2, pods([1.0] * 2), [MetricReading()])
    assert decision.desired == 2
    assert "did not receive metrics for targeted pods" in decision.message
    assert "no pods returned by selector" in controller.sync(NOW_S + 15, 2, [], [MetricReading()]).message


@given(
    values=st.lists(st.floats(0, 1000), min_size=1, max_size=40),
    minimum=st.integers(1, 5),
    more=st.integers(0, 20),
    has_behavior=st.booleans(),
)
def test_desired_stays_within_the_bounds_and_the_rate(
    values: list[float], minimum: int, more: int, has_behavior: bool
) -> None:
    spec = HpaSpec(minimum + more, (QPS,), minimum, Behavior() if has_behavior else None)
    decisions = run(HpaController(spec, SETTINGS), values, minimum)
    counts = [minimum, *(decision.desired for decision in decisions)]
    assert all(minimum <= count <= minimum + more for count in counts)
    assert all(after <= max(2 * before, before + 4) for before, after in pairwise(counts))
    falls = [index for index, (before, after) in enumerate(pairwise(counts)) if after < before]
    # 300 s of recommendations hold the replicas up: the first fall comes after 20 syncs.
    assert not falls or falls[0] >= 20


def shown(decision: ScalingDecision) -> dict[str, tuple[bool, str]]:
    """Return status and reason of each condition."""
    return {condition.type: (condition.status, condition.reason) for condition in decision.conditions}


def test_conditions_are_those_of_the_controller() -> None:
    """The target's scale is got, then scaled; a condition stays until a later sync sets it."""
    controller = HpaController(HpaSpec(5, (cpu(50),), 2), SETTINGS)
    below = controller.sync(NOW_S, 1, pods([0.2]), [levels(200)])
    assert shown(below) == {"AbleToScale": (True, "SucceededRescale")}
    assert below.conditions[0].message == "the HPA controller was able to update the target scale to 2"
    stays = controller.sync(NOW_S + 15, 2, pods([0.4] * 2), [levels(200, 200)])
    active = ("ScalingActive", (True, "ValidMetricFound"))
    within = ("ScalingLimited", (False, "DesiredWithinRange"))
    assert shown(stays) == dict([("AbleToScale", (True, "ReadyForNewScale")), active, within])
    broken = controller.sync(NOW_S + 30, 2, pods([0.4] * 2), [BROKEN])
    got = ("AbleToScale", (True, "SucceededGetScale"))
    assert shown(broken) == dict([got, ("ScalingActive", (False, "FailedGetResourceMetric")), within])
    assert broken.conditions[0].message == "the HPA controller was able to get the target's current scale"
    grows = controller.sync(NOW_S + 45, 2, pods([0.4] * 2), [levels(4000, 4000)])
    limited = ("ScalingLimited", (True, "ScaleUpLimit"))
    assert (grows.desired, shown(grows)) == (4, dict([("AbleToScale", (True, "SucceededRescale")), active, limited]))
    disabled = controller.sync(NOW_S + 60, 0, [], [levels(0)])
    assert shown(disabled) == dict([got, ("ScalingActive", (False, "ScalingDisabled")), limited])
