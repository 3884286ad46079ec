# ruff: noqa: E501 one vector a line
"""The replica calculator against vectors of upstream's replica_calculator_test.go, by the names of its tests."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conch.operate.scaling.autoscaler import MetricReading, Pod, PodPhase
from conch.operate.scaling.hpa.replica_calculator import MetricUnavailable, Observation, Tolerances, group_pods, propose
from conch.operate.scaling.hpa.spec import HpaSettings, MetricSpec, MetricType, TargetType

# Upstream's tests use other settings than its defaults.
SETTINGS = HpaSettings(tolerance=0.1, cpu_initialization_period_s=120, initial_readiness_delay_s=10)
TOLERANCES = Tolerances(0.1, 0.1)
NOW_S = 10_000.0
HOT_S, COOL_S = NOW_S, NOW_S - 180  # start times of pods within and after the initialization period
RUNNING, PENDING, FAILED = PodPhase.RUNNING, PodPhase.PENDING, PodPhase.FAILED
T, F = True, False


@dataclass(frozen=True)
class Case:
    """A vector: values, targets and usage in thousandths or percent, requests in cores."""

    name: str
    current: int
    expected: int | str  # or a part of the error
    levels: tuple[int, ...]
    target: int
    usage: int | None = None
    requests: tuple[float, ...] = ()
    ready: tuple[bool, ...] = ()
    started_s: tuple[float, ...] = ()
    phases: tuple[PodPhase, ...] = ()
    deleted: tuple[bool, ...] = ()
    pod_names: tuple[str, ...] = ()

    def pods(self) -> list[Pod]:
        """Return as many pods as upstream's harness makes."""

        def of(values: tuple, index: int, default: object) -> object:
            return values[index] if index < len(values) else default

        return [
            Pod(
                f"pod-{index}",
                of(self.phases, index, RUNNING),
                of(self.ready, index, True),
                of(self.started_s, index, 0.0),
                0.0,
                of(self.deleted, index, False),
                {"cpu": self.requests[index]} if index < len(self.requests) else {},
            )
            for index in range(max(self.current, len(self.phases)))
        ]

    def by_pod(self) -> dict[str, float]:
        """Return the values by pod."""
        names = [
            self.pod_names[index] if index < len(self.pod_names) else f"pod-{index}"
            for index in range(len(self.levels))
        ]
        return {name: level / 1000 for name, level in zip(names, self.levels, strict=True)}


ONES = tuple([1.0] * 7)
CPU = [
    Case(
        "DisjointResourcesMetrics",
        1,
        "no metrics returned matched known pods",
        (100,),
        100,
        None,
        ONES[:1],
        pod_names=("an-older-pod-name",),
    ),
    Case("ScaleUp", 3, 5, (300, 500, 700), 30, 50, ONES),
    Case("ScaleUpUnreadyLessScale", 3, 4, (300, 500, 700), 30, 60, ONES, (F, T, T)),
    Case("ScaleUpHotCpuLessScale", 3, 4, (300, 500, 700), 30, 60, ONES, (), (HOT_S, COOL_S, COOL_S)),
    Case("ScaleUpUnreadyNoScale", 3, 3, (400, 500, 700), 30, 40, ONES, (T, F, F)),
    Case("ScaleHotCpuNoScale", 3, 3, (400, 500, 700), 30, 40, ONES, (T, F, F), (COOL_S, HOT_S, HOT_S)),
    Case(
        "ScaleUpIgnoresFailedPods", 2, 4, (500, 700), 30, 60, ONES, (T, T, F, F), (), (RUNNING, RUNNING, FAILED, FAILED)
    ),
    Case("ScaleUpIgnoresDeletionPods", 2, 4, (500, 700), 30, 60, ONES, (T, T, F, F), (), (RUNNING,) * 4, (F, F, T, T)),
    Case("ScaleDown", 5, 3, (100, 300, 500, 250, 250), 50, 28, ONES),
    Case("ScaleDownIncludeUnreadyPods", 5, 2, (100, 300, 500, 250, 250), 50, 30, ONES, (T, T, T, F, F)),
    Case("ScaleDownExcludeUnscheduledPods", 5, 1, (100,), 50, 10, ONES, (T, F, F, F, F), (), (RUNNING, *[PENDING] * 4)),
    Case(
        "ScaleDownIgnoreHotCpuPods",
        5,
        2,
        (100, 300, 500, 250, 250),
        50,
        30,
        ONES,
        (),
        (COOL_S, COOL_S, COOL_S, HOT_S, HOT_S),
    ),
    Case(
        "ScaleDownIgnoresFailedPods",
        5,
        3,
        (100, 300, 500, 250, 250),
        50,
        28,
        ONES,
        (T, T, T, T, T, F, F),
        (),
        (*[RUNNING] * 5, FAILED, FAILED),
    ),
    Case(
        "ScaleDownIgnoresDeletionPods",
        5,
        3,
        (100, 300, 500, 250, 250),
        50,
        28,
        ONES,
        (T, T, T, T, T, F, F),
        (),
        (RUNNING,) * 7,
        (F, F, F, F, F, T, T),
    ),
    Case("Tolerance", 3, 3, (1010, 1030, 1020), 100, 102, (0.9, 1.0, 1.1)),
    Case("SuperfluousMetrics", 4, 24, (4000, 9500, 3000, 7000, 3200, 2000), 100, 587, ONES[:4]),
    Case("MissingMetrics", 4, 3, (400, 95), 100, 24, ONES),
    Case("EmptyCPURequest", 1, "missing request for", (200,), 100),
    Case("MissingMetricsNoChangeEq", 2, 2, (1000,), 100, 100, ONES),
    Case("MissingMetricsNoChangeGt", 2, 2, (1900,), 100, 190, ONES),
    Case("MissingMetricsNoChangeLt", 2, 2, (600,), 100, 60, ONES),
    Case("MissingMetricsUnreadyChange", 3, 3, (100, 450), 50, 45, ONES, (F, T, T)),
    Case("MissingMetricsHotCpuNoChange", 3, 3, (100, 450), 50, 45, ONES, (), (HOT_S, COOL_S, COOL_S)),
    Case("MissingMetricsUnreadyScaleUp", 3, 4, (100, 2000), 50, 200, ONES, (F, T, T)),
    Case("MissingMetricsHotCpuScaleUp", 3, 4, (100, 2000), 50, 200, ONES, (F, T, T), (HOT_S, COOL_S, COOL_S)),
    Case("MissingMetricsUnreadyScaleDown", 4, 3, (100, 100, 100), 50, 10, ONES, (F, T, T, T)),
    Case("DuringRollingUpdateWithMaxSurge", 2, 2, (100, 100), 50, 10, ONES, (), (), (RUNNING,) * 3),
    # 10 pods of 150m that ask for about 300m: a target of 56 % is just outside the tolerance, 55 % just inside.
    Case(
        "ComputedToleranceAlgImplementation",
        10,
        9,
        (150,) * 10,
        56,
        50,
        (0.4, 0.2, 0.31, 0.29, 0.302, 0.298, 0.301, 0.299, 0.3, 0.3),
    ),
    Case(
        "ComputedToleranceAlgImplementation, unscaled",
        10,
        10,
        (150,) * 10,
        55,
        50,
        (0.4, 0.2, 0.31, 0.29, 0.302, 0.298, 0.301, 0.299, 0.3, 0.3),
    ),
]
PODS = [
    Case("ScaleUpCM", 3, 4, (20000, 10000, 30000), 15000, 20000),
    Case(
        "ScaleUpCMUnreadyHotCpuNoLessScale",
        3,
        6,
        (50000, 10000, 30000),
        15000,
        30000,
        (),
        (T, T, F),
        (COOL_S, COOL_S, HOT_S),
    ),
    Case(
        "ScaleUpCMUnreadyHotCpuScaleWouldScaleDown",
        3,
        7,
        (50000, 15000, 30000),
        15000,
        31666,
        (),
        (F, T, F),
        (HOT_S, COOL_S, HOT_S),
    ),
    Case("ScaleUpCMExternal", 1, 2, (8600,), 4400, 8600),
    Case("ScaleUpCMExternalNoLabels", 1, 2, (8600,), 4400, 8600),
    Case("ScaleDownCM", 5, 3, (12000,) * 5, 20000, 12000),
    Case("ToleranceCM", 3, 3, (20000, 21000, 21000), 20000, 20666),
]
TOTALS = [
    Case("ScaleUpCMObject", 3, 4, (20000,), 15000, 20000),
    Case("ScaleUpCMObjectIgnoresUnreadyPods", 3, 5, (50000,), 10000, 50000, (), (F, T, F)),
    Case("ScaleUpCMExternalIgnoresUnreadyPods", 3, 2, (8600,), 4400, 8600, (), (F, T, F)),
    Case("ScaleDownCMObject", 5, 3, (12000,), 20000, 12000),
    Case("ScaleDownCMExternal", 5, 3, (8600,), 14334, 8600),
    Case("ToleranceCMObject", 3, 3, (20666,), 20000, 20666),
    Case("ToleranceCMExternal", 3, 3, (8600,), 8888, 8600),
]
PER_POD = [
    Case("ScaleUpCMPerPodObject", 3, 4, (20000,), 5000, 6667),
    Case("ScaleUpPerPodCMExternal", 3, 4, (8600,), 2150, 2867),
    Case("ScaleDownPerPodCMObject", 5, 3, (6000,), 2000, 1200),
    Case("ScaleDownPerPodCMExternal", 5, 3, (8600,), 2867, 1720),
    Case("TolerancePerPodCMObject", 4, 4, (20166,), 5000, 5042),
    Case("TolerancePerPodCMExternal", 3, 3, (8600,), 2900, 2867),
]


def result(case: Case, metric: MetricSpec, reading: MetricReading) -> tuple[int | str, float | None]:
    """Return the proposed replicas and the usage, or the error."""
    seen = Observation(NOW_S, case.current, case.current, case.pods())
    try:
        proposal = propose(metric, reading, seen, TOLERANCES, SETTINGS)
    except MetricUnavailable as error:
        return str(error), None
    return proposal.replicas, proposal.usage


@pytest.mark.parametrize("case", CPU, ids=lambda case: case.name)
def test_cpu_utilization(case: Case) -> None:
    metric = MetricSpec(MetricType.RESOURCE, "cpu", TargetType.UTILIZATION, case.target)
    replicas, usage = result(case, metric, MetricReading(by_pod=case.by_pod(), measured_at_s=0.0))
    if isinstance(case.expected, str):
        assert case.expected in str(replicas)
    else:
        assert (replicas, usage) == (case.expected, case.usage)


@pytest.mark.parametrize("case", PODS, ids=lambda case: case.name)
def test_pods_metrics(case: Case) -> None:
    metric = MetricSpec(MetricType.PODS, "qps", TargetType.AVERAGE_VALUE, case.target / 1000)
    assert case.usage is not None
    expected = (case.expected, case.usage / 1000)
    assert result(case, metric, MetricReading(by_pod=case.by_pod())) == expected


@pytest.mark.parametrize("metric_type", [MetricType.OBJECT, MetricType.EXTERNAL])
@pytest.mark.parametrize("case", [*TOTALS, *PER_POD], ids=lambda case: case.name)
def test_object_and_external_metrics(case: Case, metric_type: MetricType) -> None:
    target_type = TargetType.AVERAGE_VALUE if case in PER_POD else TargetType.VALUE
    metric = MetricSpec(metric_type, "qps", target_type, case.target / 1000)
    assert case.usage is not None
    expected = (case.expected, case.usage / 1000)
    assert result(case, metric, MetricReading(value=case.levels[0] / 1000)) == expected


def test_zero_replicas_scale_by_a_total() -> None:
    case = Case("", 0, 3, (2500,), 1000)
    metric = MetricSpec(MetricType.EXTERNAL, "queue", TargetType.VALUE, 1.0)
    assert result(case, metric, MetricReading(value=2.5))[0] == 3
    assert result(case, metric, MetricReading(value=0.0))[0] == 0


def seconds_ago(seconds: float) -> float:
    """Return a time before now."""
    return NOW_S - seconds


# Name, pod, values by pod, window, age of the value, resource; ready, unready, missing: upstream's TestGroupPods.
GROUPS = [
    ("void", None, {}, 60, 0, "cpu", (0, "", "")),
    ("count in a ready pod - memory", Pod("a", ready=False, started_s=None, ready_since_s=None), {"a": 1}, 60, 0, "memory", (1, "", "")),
    ("ignore a pod without ready condition - CPU", Pod("a", started_s=NOW_S, ready_since_s=None), {"a": 1}, 60, 0, "cpu", (0, "a", "")),
    ("count in a ready pod with fresh metrics during initialization period - CPU", Pod("a", started_s=seconds_ago(60), ready_since_s=seconds_ago(30)), {"a": 1}, 30, 0, "cpu", (1, "", "")),
    ("ignore a ready pod without fresh metrics during initialization period - CPU", Pod("a", started_s=seconds_ago(60), ready_since_s=seconds_ago(30)), {"a": 1}, 60, 0, "cpu", (0, "a", "")),
    ("ignore an unready pod during initialization period - CPU", Pod("a", ready=False, started_s=seconds_ago(600), ready_since_s=seconds_ago(594)), {"a": 1}, 60, 0, "cpu", (0, "a", "")),
    ("count in a ready pod without fresh metrics after initialization period - CPU", Pod("a", started_s=seconds_ago(180), ready_since_s=seconds_ago(180)), {"a": 1}, 60, 120, "cpu", (1, "", "")),
    ("count in an unready pod that was ready after initialization period - CPU", Pod("a", ready=False, started_s=seconds_ago(600), ready_since_s=seconds_ago(540)), {"a": 1}, 60, 0, "cpu", (1, "", "")),
    ("ignore pod that has never been ready after initialization period - CPU", Pod("a", ready=False, started_s=seconds_ago(600), ready_since_s=seconds_ago(590)), {"a": 1}, 60, 0, "cpu", (1, "", "")),
    ("a missing pod", Pod("a", started_s=seconds_ago(180)), {}, 60, 0, "cpu", (0, "", "a")),
    ("pending pods are ignored", Pod("a", PENDING), {}, 60, 0, "cpu", (0, "a", "")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "pod", "by_pod", "window", "age", "resource", "expected"),
    GROUPS,
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_pods_are_grouped(
    name: str, pod: Pod | None, by_pod: dict, window: float, age: float, resource: str, expected: tuple
) -> None:
    reading = MetricReading(by_pod=by_pod, measured_at_s=NOW_S - age, window_s=window)
    groups = group_pods([pod] if pod else [], reading, resource, NOW_S, SETTINGS)
    assert (groups.ready, "".join(groups.unready), "".join(groups.missing)) == expected


def test_deleted_and_failed_pods_are_ignored() -> None:
    pods = [Pod("a", deleted=True), Pod("b", FAILED)]
    assert group_pods(pods, MetricReading(by_pod={"a": 1}), "", NOW_S, SETTINGS).ignored == {"a", "b"}


VALUES = st.floats(0, 1e6, allow_nan=False)


@given(
    values=st.lists(VALUES, min_size=1, max_size=8),
    more=VALUES,
    target=st.floats(0.001, 1e4),
    missing=st.integers(0, 3),
    pending=st.integers(0, 3),
)
def test_replicas_rise_with_the_metric(
    values: list[float], more: float, target: float, missing: int, pending: int
) -> None:
    """Monotone where all pods report. Pods without values turn the direction once, between idle and at the target."""
    pods = [Pod(str(index)) for index in range(len(values) + missing)]
    pods += [replace(Pod(f"p{index}"), phase=PENDING) for index in range(pending)]
    seen = Observation(NOW_S, len(pods), len(pods), pods)
    metric = MetricSpec(MetricType.PODS, "x", TargetType.AVERAGE_VALUE, target)
    low, high = (
        propose(
            metric,
            MetricReading(by_pod={str(index): value + add for index, value in enumerate(values)}),
            seen,
            TOLERANCES,
            SETTINGS,
        ).replicas
        for add in (0.0, more)
    )
    assert low <= high


@given(count=st.integers(1, 50), ratio=st.floats(0.9001, 1.0999), target=st.floats(0.1, 1e4))
def test_nothing_changes_within_the_tolerance(count: int, ratio: float, target: float) -> None:
    pods = [Pod(str(index)) for index in range(count)]
    seen = Observation(NOW_S, count, count, pods)
    metric = MetricSpec(MetricType.PODS, "x", TargetType.AVERAGE_VALUE, round(target, 3))
    value = round(round(target, 3) * ratio, 3)
    if abs(value / round(target, 3) - 1) < 0.1:
        reading = MetricReading(by_pod={pod.name: value for pod in pods})
        assert propose(metric, reading, seen, TOLERANCES, SETTINGS).replicas == count
