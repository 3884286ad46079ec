"""Intervals of a cluster, all shortened by one factor, and the fleet's clock, which runs that much faster."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic

from conch.operate.monitoring.promql import Call, Node, Number, Selector, Subquery, parse, render, rewrite
from conch.operate.monitoring.rules.rule import RecordingRule, RuleGroup

# What a cluster has at speed 1.
SCRAPE_INTERVAL_S = 6.0  # of the PodMonitor
SYNC_PERIOD_S = 15.0  # --horizontal-pod-autoscaler-sync-period
LOOKBACK_S = 300.0  # --query.lookback-delta of Prometheus
RESTART_BACKOFF_S = 10.0  # of the kubelet, doubled with each failure
MAX_RESTART_BACKOFF_S = 300.0


@dataclass(frozen=True, slots=True)
class Timing:
    """How much faster than a cluster the loop runs. Replicas start and answer in real time."""

    speed: float = 1.0

    def shortened_s(self, seconds: float) -> float:
        """Return how long the fleet takes for what takes a cluster `seconds`."""
        return seconds / self.speed

    def shortened(self, seconds: float) -> str:
        """Return a shortened duration as Prometheus writes it."""
        return f"{max(round(self.shortened_s(seconds) * 1000), 1)}ms"

    def shortened_rules(self, group: RuleGroup) -> RuleGroup:
        """Return recording rules with shortened ranges."""
        recording = (rule for rule in group.rules if isinstance(rule, RecordingRule))
        return RuleGroup(group.name, tuple(replace(rule, expr=self.shortened_query(rule.expr)) for rule in recording))

    def shortened_query(self, expr: str) -> str:
        """Return a query whose ranges, such as those of rate(), are shortened."""
        return render(rewrite(parse(expr), self._shorten))

    def _shorten(self, node: Node) -> Node:
        if isinstance(node, Selector) and node.range_s is not None:
            return replace(node, range_s=round(self.shortened_s(node.range_s), 3))
        if isinstance(node, Subquery):
            step_s = None if node.step_s is None else round(self.shortened_s(node.step_s), 3)
            return replace(node, range_s=round(self.shortened_s(node.range_s), 3), step_s=step_s)
        if isinstance(node, Call) and node.function == "predict_linear":
            past, horizon = node.arguments
            return replace(
                node, arguments=(past, Number(horizon.value / self.speed) if isinstance(horizon, Number) else horizon)
            )
        return node


class ClusterClock:
    """Seconds since the start as a cluster counts them: `speed` per real second."""

    def __init__(self, timing: Timing, clock: Callable[[], float] = monotonic) -> None:
        self._timing = timing
        self._clock = clock
        self._started = clock()

    @property
    def speed(self) -> float:
        """Cluster seconds per real second."""
        return self._timing.speed

    @property
    def elapsed_s(self) -> float:
        """Real seconds since the start."""
        return self._clock() - self._started

    @property
    def now_s(self) -> float:
        """Cluster seconds since the start."""
        return self.elapsed_s * self._timing.speed
