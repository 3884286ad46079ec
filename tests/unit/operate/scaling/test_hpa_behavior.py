# ruff: noqa: E501 one vector a line
"""Limits of the HPA against vectors of upstream's horizontal_test.go, by the names of its tests."""

from collections.abc import Sequence

import pytest

from conch.operate.scaling.autoscaler import ScalingEvent
from conch.operate.scaling.hpa.behavior import (
    RateOfChange,
    Recommendation,
    limit_with_behavior,
    limit_without_behavior,
    stabilize,
    stabilize_down,
    store_event,
)
from conch.operate.scaling.hpa.spec import (
    DEFAULT_SCALE_DOWN,
    DEFAULT_SCALE_UP,
    PolicyType,
    ScalingPolicy,
    ScalingRules,
    SelectPolicy,
)

NOW_S = 10_000.0


def rules(pods: int, pods_period_s: int, percent: int, percent_period_s: int, window_s: int) -> ScalingRules:
    """Return rules as upstream's generateScalingRules does."""
    policies = []
    if pods:
        policies.append(ScalingPolicy(PolicyType.PODS, pods, pods_period_s))
    if percent:
        policies.append(ScalingPolicy(PolicyType.PERCENT, percent, percent_period_s))
    return ScalingRules(tuple(policies), window_s)


def spread(changes: Sequence[int], period_s: int, sign: int) -> list[ScalingEvent]:
    """Return events in the middle of equal parts of a period that ends now."""
    part = period_s / len(changes)
    return [
        ScalingEvent(NOW_S - int(period_s - part * (index + 1) + part / 2), 0, sign * change)
        for index, change in enumerate(changes)
    ]


# Name, current, desired, minimum, maximum; expected replicas and reason: TestConvertDesiredReplicasWithRules.
WITHOUT_BEHAVIOR = [
    ("prenormalized desired replicas within range", 5, 7, 3, 8, 7, "DesiredWithinRange"),
    ("prenormalized desired replicas < minReplicas", 3, 1, 2, 8, 2, "TooFewReplicas"),
    ("prenormalized desired zeroed replicas within range", 1, 0, 0, 10, 0, "DesiredWithinRange"),
    ("maxReplicas is the limit because maxReplicas < scaleUpLimit", 20, 1000, 1, 10, 10, "TooManyReplicas"),
    ("scaleUpLimit is the limit because scaleUpLimit < maxReplicas", 3, 1000, 1, 2000, 6, "ScaleUpLimit"),
]


@pytest.mark.parametrize(
    ("name", "current", "desired", "minimum", "maximum", "expected", "reason"),
    WITHOUT_BEHAVIOR,
    ids=[case[0] for case in WITHOUT_BEHAVIOR],
)
def test_limits_without_behavior(
    name: str, current: int, desired: int, minimum: int, maximum: int, expected: int, reason: str
) -> None:
    limited = limit_without_behavior(current, desired, minimum, maximum)
    assert (limited.replicas, limited.reason) == (expected, reason)


UP, DOWN, MANY, FEW, WITHIN = (
    "ScaleUpLimit",
    "ScaleDownLimit",
    "TooManyReplicas",
    "TooFewReplicas",
    "DesiredWithinRange",
)
# Name, bounds, current, desired, up rules, down rules, up events, down events; replicas, reason: TestScalingWithRules.
WITH_BEHAVIOR = [
    ("prenormalized desired replicas within range", (3, 8), 5, 7, None, None, (), (), 7, WITHIN),
    ("prenormalized desired replicas < minReplicas", (2, 8), 3, 1, None, None, (), (), 2, FEW),
    ("prenormalized desired replicas within range when minReplicas is 0", (0, 10), 1, 0, None, None, (), (), 0, WITHIN),
    ("maxReplicas is the limit because maxReplicas < scaleUpLimit", (1, 10), 20, 1000, None, None, (), (), 10, MANY),
    ("desired replica count is more than the maximum replica count", (100, 150), 100, 1000, None, None, (), (), 150, MANY),
    ("scaleUpLimit is the limit with user policies", (1, 2000), 3, 1000, (0, 0, 1, 60, 0), None, (), (), 4, UP),
    ("scaleDownLimit is the limit with user defined policies", (3, 2000), 1000, 3, None, (20, 60, 0, 0, 0), (), (), 980, DOWN),
    ("scaleUp with default behavior", (1, 1000), 10, 50, None, None, (), (), 20, UP),
    ("scaleUp with pods policy larger than percent policy", (1, 1000), 10, 500, (100, 60, 100, 60, 0), None, (), (), 110, UP),
    ("scaleUp with percent policy larger than pods policy", (1, 1000), 10, 500, (2, 60, 100, 60, 0), None, (), (), 20, UP),
    ("scaleUp with spec MaxReplicas limitation with large pod policy", (1, 1000), 10, 50, (100, 60, 0, 0, 0), None, (), (), 50, WITHIN),
    ("scaleUp with spec MaxReplicas limitation with large percent policy", (1, 1000), 10, 50, (10000, 60, 0, 0, 0), None, (), (), 50, WITHIN),
    ("scaleUp with pod policy limitation", (1, 1000), 10, 50, (30, 60, 0, 0, 0), None, (), (), 40, UP),
    ("scaleUp with percent policy limitation", (1, 1000), 10, 50, (0, 0, 200, 60, 0), None, (), (), 30, UP),
    ("scaleDown with percent policy larger than pod policy", (1, 1000), 100, 2, None, (20, 60, 1, 60, 300), (), (), 80, DOWN),
    ("scaleDown with pod policy larger than percent policy", (1, 1000), 100, 2, None, (2, 60, 1, 60, 300), (), (), 98, DOWN),
    ("scaleDown with spec MinReplicas limitation with large pod policy", (1, 1000), 10, 0, None, (100, 60, 0, 0, 300), (), (), 1, FEW),
    ("scaleDown with spec MinReplicas limitation with large percent policy", (5, 1000), 10, 2, None, (0, 0, 100, 60, 300), (), (), 5, FEW),
    ("scaleDown with pod policy limitation", (1, 1000), 10, 2, None, (5, 60, 0, 0, 300), (), (), 5, DOWN),
    ("scaleDown with percent policy limitation", (1, 1000), 10, 5, None, (0, 0, 50, 60, 300), (), (), 5, WITHIN),
    ("scaleUp with spec MaxReplicas limitation with large pod policy and events", (1, 200), 100, 500, (300, 60, 0, 0, 0), None, (1, 5, 9), (), 200, MANY),
    ("scaleUp with spec MaxReplicas limitation with large percent policy and events", (1, 200), 100, 500, (0, 0, 10000, 60, 0), None, (1, 5, 9), (), 200, MANY),
    ("scaleUp with currentReplicas limitation with a lot of recent scale up events", (1, 1000), 100, 500, (5, 120, 0, 0, 0), None, (1, 5, 9), (), 100, UP),
    ("scaleUp with pod policy and previous scale up events", (1, 1000), 100, 500, (150, 120, 0, 0, 0), None, (1, 5, 9), (), 235, UP),
    ("scaleUp with percent policy and previous scale up events", (1, 1000), 100, 500, (0, 0, 200, 120, 0), None, (1, 5, 9), (), 255, UP),
    ("scaleUp with percent policy and previous scale up and down events", (1, 1000), 6, 24, (0, 0, 300, 300, 0), None, (4,), (2,), 16, UP),
    ("scaleDown with default policy and previous events", (1, 1000), 10, 5, None, None, (), (1, 5, 9), 5, WITHIN),
    ("scaleDown with spec MinReplicas=nil limitation with large pod policy and previous events", (1, 1000), 100, 0, None, (115, 120, 0, 0, 300), (), (1, 5, 9), 1, FEW),
    ("scaleDown with spec MinReplicas limitation with large pod policy and previous events", (5, 1000), 100, 0, None, (130, 120, 0, 0, 300), (), (1, 5, 9), 5, FEW),
    ("scaleDown with spec MinReplicas limitation with large percent policy and previous events", (5, 1000), 100, 2, None, (0, 0, 100, 120, 300), (), (1, 5, 9), 5, FEW),
    ("scaleDown with pod policy limitation and previous events", (1, 1000), 100, 2, None, (5, 120, 0, 0, 300), (), (1, 5, 9), 100, DOWN),
    ("scaleDown with percent policy limitation and previous events", (1, 1000), 100, 0, None, (0, 0, 50, 120, 300), (), (2, 4, 6), 56, DOWN),
    ("scaleDown with percent policy and previous scale up and down events", (1, 1000), 10, 1, None, (0, 0, 50, 180, 0), (2,), (4,), 6, DOWN),
    ("scaleDown with previous events preventing further scale down", (1, 1000), 100, 0, None, (0, 0, 10, 120, 300), (), (10, 10, 10), 100, DOWN),
    ("scaleDown with with previous events still allowing more scale down", (1, 1000), 10, 5, None, (0, 0, 1000, 120, 300), (), (10, 10, 10), 5, WITHIN),
    ("check 'outdated' flag for events for one behavior for up", (1, 1000), 100, 200, (1000, 60, 0, 0, 0), None, (8, 12, 9, 11), (), 200, WITHIN),
    ("events were not marked 'outdated' for two different policies for up", (1, 1000), 100, 200, (1000, 120, 100, 60, 0), None, (8, 12, 9, 11), (), 200, WITHIN),
    ("events were marked 'outdated' for two different policies for up", (1, 1000), 100, 200, (1000, 30, 100, 60, 0), None, (8, 12, 9, 11), (), 200, WITHIN),
    ("check 'outdated' flag for events for one behavior for down", (1, 1000), 100, 5, None, (1000, 60, 0, 0, 300), (), (8, 12, 9, 11), 5, WITHIN),
    ("events were not marked 'outdated' for two different policies for down", (1, 1000), 100, 5, None, (1000, 120, 100, 60, 300), (), (8, 12, 9, 11), 5, WITHIN),
    ("events were marked 'outdated' for two different policies for down", (1, 1000), 100, 5, None, (1000, 30, 100, 60, 300), (), (8, 12, 9, 11), 5, WITHIN),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "bounds", "current", "desired", "up", "down", "ups", "downs", "expected", "reason"),
    WITH_BEHAVIOR,
    ids=[case[0] for case in WITH_BEHAVIOR],
)
def test_limits_with_behavior(name, bounds, current, desired, up, down, ups, downs, expected, reason) -> None:  # type: ignore[no-untyped-def]
    events = [*(spread(ups, 120, 1) if ups else ()), *(spread(downs, 120, -1) if downs else ())]
    up_rules = rules(*up) if up else DEFAULT_SCALE_UP
    down_rules = rules(*down) if down else DEFAULT_SCALE_DOWN
    limited = limit_with_behavior(
        current, desired, bounds, RateOfChange(up_rules, events, NOW_S), RateOfChange(down_rules, events, NOW_S)
    )
    assert (limited.replicas, limited.reason) == (expected, reason)


def test_calculate_limits_with_the_smallest_change() -> None:
    """TestCalculateScaleUpLimitWithScalingRules and TestCalculateScaleDownLimitWithBehaviors."""
    both = (ScalingPolicy(PolicyType.PODS, 2, 60), ScalingPolicy(PolicyType.PERCENT, 50, 60))
    smallest = ScalingRules(both, 300, SelectPolicy.MIN)
    assert RateOfChange(smallest, [], NOW_S).up_limit(1) == 2
    assert RateOfChange(smallest, [], NOW_S).down_limit(5) == 3
    disabled = ScalingRules(both, 300, SelectPolicy.DISABLED)
    assert RateOfChange(disabled, [], NOW_S).up_limit(7) == RateOfChange(disabled, [], NOW_S).down_limit(7) == 7


def history(*entries: tuple[int, float]) -> list[Recommendation]:
    """Return recommendations of (replicas, minutes ago)."""
    return [Recommendation(NOW_S - 60 * minutes, replicas) for replicas, minutes in entries]


@pytest.mark.parametrize(
    ("name", "entries", "expected"),
    [
        ("empty log", (), 3),
        ("stabilize", ((4, 2), (5, 1)), 5),
        ("no stabilize", ((1, 2), (2, 1)), 3),
        ("no stabilize - old recommendations", ((10, 10), (9, 9)), 3),
        ("stabilize - old recommendations", ((10, 10), (4, 1), (5, 2), (9, 9)), 5),
    ],
)
def test_stabilization_without_behavior(name: str, entries: tuple[tuple[int, float], ...], expected: int) -> None:
    """TestNormalizeDesiredReplicas."""
    assert stabilize_down(history(*entries), 3, NOW_S, 300) == expected


@pytest.mark.parametrize(
    ("name", "entries", "current", "desired", "up_s", "down_s", "expected"),
    [
        ("empty recommendations for scaling down", (), 100, 5, 0, 0, 5),
        ("simple scale down stabilization", ((4, 2), (5, 1)), 100, 3, 0, 180, 5),
        ("simple scale up stabilization", ((4, 2), (5, 1)), 1, 7, 300, 0, 4),
        ("no scale down stabilization", ((1, 2), (2, 1)), 100, 3, 300, 0, 3),
        ("no scale up stabilization", ((4, 2), (5, 1)), 1, 3, 0, 300, 3),
        ("no scale down stabilization, reuse recommendation element", ((10, 10), (9, 9)), 100, 3, 0, 0, 3),
        ("no scale up stabilization, reuse recommendation element", ((10, 10), (9, 9)), 1, 100, 0, 0, 100),
        ("scale down stabilization, reuse one", ((10, 10), (4, 1), (5, 2), (9, 9)), 100, 3, 0, 180, 5),
        ("scale up stabilization, reuse one", ((10, 100), (6, 1), (5, 2), (9, 3)), 1, 100, 300, 0, 5),
        ("do not scale up when prenormalized rec goes down", ((2, 100), (3, 3)), 2, 1, 300, 300, 2),
        ("do not scale down when prenormalized rec goes up", ((2, 100), (1, 3)), 2, 3, 300, 300, 2),
    ],
)
def test_stabilization_with_behavior(name, entries, current, desired, up_s, down_s, expected) -> None:  # type: ignore[no-untyped-def]
    """TestNormalizeDesiredReplicasWithBehavior."""
    assert stabilize(history(*entries), current, desired, NOW_S, (up_s, down_s)) == expected


# Name, (change, seconds ago) before, changes afterwards, rules; change of 60 s before: TestStoreScaleEvents.
STORED = [
    ("empty entries with two-policy-behavior", (), (5,), (10, 60, 100, 60, 0), 0),
    ("one outdated entry to be replaced with behavior", ((7, 61),), (5,), (10, 60, 100, 60, 0), 0),
    ("one actual entry to be not touched with behavior", ((7, 58),), (7, 5), (10, 60, 100, 60, 0), 7),
    ("two entries, one of them to be replaced", ((7, 61), (6, 59)), (5, 6), (10, 60, 0, 0, 0), 6),
    ("replace one entry, different periods", ((8, 29), (6, 59), (7, 61), (9, 61)), (8, 6, 7, 5), (10, 60, 100, 30, 0), 14),
    ("two entries, both actual", ((7, 58), (6, 59)), (7, 6, 5), (10, 120, 100, 30, 0), 13),
]  # fmt: skip


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("name", "before", "after", "given", "change"), STORED, ids=[case[0] for case in STORED])
def test_scale_events_are_stored(name, before, after, given, change, sign) -> None:  # type: ignore[no-untyped-def]
    events = [ScalingEvent(NOW_S - ago, 0, sign * replicas_before) for replicas_before, ago in before]
    one_per_minute = ScalingRules((ScalingPolicy(PolicyType.PODS, 0, 60),))
    assert RateOfChange(one_per_minute, events, NOW_S).up_limit(100) == 100 - sign * change
    store_event(events, ScalingEvent(NOW_S, 10, 10 + sign * 5), rules(*given))
    assert [sign * (event.after - event.before) for event in events] == list(after)
