"""How fast replicas may change: stabilization windows and policies of a behavior, or the controller's own limits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil

from conch.operate.scaling.autoscaler import ScalingEvent
from conch.operate.scaling.hpa.spec import PolicyType, ScalingPolicy, ScalingRules, SelectPolicy

_SCALE_UP_FACTOR = 2.0
_SCALE_UP_MINIMUM = 4.0

WITHIN_RANGE = ("DesiredWithinRange", "the desired count is within the acceptable range")
_TOO_MANY = ("TooManyReplicas", "the desired replica count is more than the maximum replica count")
_TOO_FEW = ("TooFewReplicas", "the desired replica count is less than the minimum replica count")
_UP_LIMIT = ("ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate")
_DOWN_LIMIT = ("ScaleDownLimit", "the desired replica count is decreasing faster than the maximum scale rate")


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The replicas that the metrics asked for at a time."""

    at_s: float
    replicas: int


@dataclass(frozen=True, slots=True)
class Limited:
    """Replicas after a limit, and the reason and message of the condition ScalingLimited."""

    replicas: int
    reason: str
    message: str


def stabilize_down(history: Sequence[Recommendation], desired: int, now_s: float, window_s: float) -> int:
    """Return the highest recommendation of the window, as without a behavior."""
    return max(
        [desired, *(recommendation.replicas for recommendation in history if recommendation.at_s >= now_s - window_s)]
    )


def stabilize(
    history: Sequence[Recommendation], current: int, desired: int, now_s: float, windows_s: tuple[float, float]
) -> int:
    """Return the recommendation nearest to `current` that both windows (up, down) allow."""
    up_s, down_s = windows_s
    lowest = min(
        [desired, *(recommendation.replicas for recommendation in history if recommendation.at_s > now_s - up_s)]
    )
    highest = max(
        [desired, *(recommendation.replicas for recommendation in history if recommendation.at_s > now_s - down_s)]
    )
    return min(max(current, lowest), highest)


def limit_without_behavior(current: int, desired: int, minimum: int, maximum: int) -> Limited:
    """Apply minimum, maximum and the controller's limit: at most twice the current replicas, or 4."""
    scale_up_limit = int(max(_SCALE_UP_FACTOR * current, _SCALE_UP_MINIMUM))
    highest, reason = (scale_up_limit, _UP_LIMIT) if maximum > scale_up_limit else (maximum, _TOO_MANY)
    if desired < minimum:
        return Limited(minimum, *_TOO_FEW)
    if desired > highest:
        return Limited(highest, *reason)
    return Limited(desired, *WITHIN_RANGE)


def store_event(events: list[ScalingEvent], event: ScalingEvent, rules: ScalingRules) -> None:
    """Add an event of one direction; it replaces one that is older than the longest period of the policies."""
    oldest_s = event.at_s - rules.longest_period_s
    outdated = [index for index, stored in enumerate(events) if stored.at_s < oldest_s]
    if outdated:
        events[outdated[-1]] = event
    else:
        events.append(event)


@dataclass(frozen=True, slots=True)
class RateOfChange:
    """The policies of one direction, and the changes of the past that use up what they allow."""

    rules: ScalingRules
    events: Sequence[ScalingEvent]
    now_s: float

    def up_limit(self, current: int) -> int:
        """Return the most replicas that the policies allow now."""
        return self._limit(current, 1, max, min)

    def down_limit(self, current: int) -> int:
        """Return the fewest replicas that the policies allow now."""
        return self._limit(current, -1, min, max)

    def _limit(
        self, current: int, sign: int, widest: Callable[[list[int]], int], narrowest: Callable[[list[int]], int]
    ) -> int:
        if self.rules.select is SelectPolicy.DISABLED:
            return current
        choose = narrowest if self.rules.select is SelectPolicy.MIN else widest
        return choose([self._allowed(policy, current, sign) for policy in self.rules.policies])

    def _allowed(self, policy: ScalingPolicy, current: int, sign: int) -> int:
        start = current - sum(
            event.after - event.before for event in self.events if event.at_s > self.now_s - policy.period_s
        )
        if policy.type is PolicyType.PODS:
            return start + sign * policy.value
        changed = start * (1 + sign * policy.value / 100)
        # Rounded up, or one replica and 10 % would never become two.
        return ceil(changed) if sign > 0 else int(changed)


def limit_with_behavior(
    current: int, desired: int, bounds: tuple[int, int], up: RateOfChange, down: RateOfChange
) -> Limited:
    """Apply policies, minimum and maximum (`bounds`)."""
    minimum, maximum = bounds
    if desired > current:
        limit = max(up.up_limit(current), current)
        highest, reason = (limit, _UP_LIMIT) if maximum > limit else (maximum, _TOO_MANY)
        if desired > highest:
            return Limited(highest, *reason)
    elif desired < current:
        limit = min(down.down_limit(current), current)
        lowest, reason = (limit, _DOWN_LIMIT) if minimum < limit else (minimum, _TOO_FEW)
        if desired < lowest:
            return Limited(lowest, *reason)
    return Limited(desired, *WITHIN_RANGE)
