"""A ScaledObject of KEDA, typed."""

from dataclasses import dataclass
from enum import Enum

from conch.operate.scaling.hpa.spec import Behavior, HpaSpec, MetricSpec, MetricType, TargetType
from conch.operate.scaling.keda.formula import Formula

COMPOSITE_METRIC = "composite-metric"


class FallbackBehavior(Enum):
    """Which replicas a fallback asks for."""

    STATIC = "static"
    CURRENT = "currentReplicas"
    CURRENT_IF_HIGHER = "currentReplicasIfHigher"
    CURRENT_IF_LOWER = "currentReplicasIfLower"
    TRIGGER_SCOPED = "triggerScoped"  # none: failing triggers are nil in the formula of scaling modifiers


@dataclass(frozen=True, slots=True)
class Fallback:
    """What KEDA reports after more than `failure_threshold` failed reads of a metric in a row."""

    failure_threshold: int
    replicas: int
    behavior: FallbackBehavior = FallbackBehavior.STATIC

    def choose(self, current: int) -> int:
        """Return the replicas that the fallback asks for."""
        if self.behavior is FallbackBehavior.CURRENT:
            return current
        if self.behavior is FallbackBehavior.CURRENT_IF_HIGHER:
            return max(current, self.replicas)
        if self.behavior is FallbackBehavior.CURRENT_IF_LOWER:
            return min(current, self.replicas)
        return self.replicas


@dataclass(frozen=True, slots=True)
class Trigger:
    """A trigger of the type prometheus. `metric` is what its HPA has; its name is that of the trigger or s0-prometheus.

    With `ignore_null` (KEDA's default) an empty result counts as 0: it scales down. Otherwise it is an error.
    """

    query: str
    metric: MetricSpec
    activation_threshold: float = 0.0
    ignore_null: bool = True


@dataclass(frozen=True, slots=True)
class ScalingModifiers:
    """A formula over the values of the triggers; the HPA then has one composite metric."""

    formula: Formula
    metric: MetricSpec
    activation_target: float = 0.0


@dataclass(frozen=True, slots=True)
class ScaledObjectSpec:
    """A ScaledObject, completed with KEDA's defaults."""

    triggers: tuple[Trigger, ...]
    min_replicas: int = 0
    max_replicas: int = 100
    idle_replicas: int | None = None
    polling_interval_s: float = 30.0
    cooldown_s: float = 300.0
    initial_cooldown_s: float = 0.0
    fallback: Fallback | None = None
    behavior: Behavior | None = None
    modifiers: ScalingModifiers | None = None
    name: str = ""
    target: tuple[str, str] = ("Deployment", "")

    def hpa(self) -> HpaSpec:
        """Return the HorizontalPodAutoscaler that KEDA creates: it never goes below 1, KEDA itself goes to 0."""
        metrics = tuple(each.metric for each in self.triggers)
        if self.modifiers is not None:
            metrics = (self.modifiers.metric,)
        return HpaSpec(
            self.max_replicas, metrics, max(self.min_replicas, 1), self.behavior, f"keda-hpa-{self.name}", self.target
        )


def external(name: str, target: float, *, is_average: bool) -> MetricSpec:
    """Return the External metric of a trigger."""
    target_type = TargetType.AVERAGE_VALUE if is_average else TargetType.VALUE
    return MetricSpec(MetricType.EXTERNAL, name, target_type, target)
