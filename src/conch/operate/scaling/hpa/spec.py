"""A HorizontalPodAutoscaler, typed, and the settings of the controller."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class MetricType(Enum):
    """The source of a metric, as spec.metrics[].type has it."""

    RESOURCE = "Resource"
    CONTAINER_RESOURCE = "ContainerResource"
    PODS = "Pods"
    OBJECT = "Object"
    EXTERNAL = "External"


class TargetType(Enum):
    """How a metric is compared, as target.type has it."""

    UTILIZATION = "Utilization"
    VALUE = "Value"
    AVERAGE_VALUE = "AverageValue"


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """A metric and its target: `target` is a percentage of the request for UTILIZATION, else a number."""

    type: MetricType
    name: str
    target_type: TargetType
    target: float
    container: str = ""
    described_object: tuple[str, str] = ("", "")  # kind, name
    selector: Mapping[str, str] = field(default_factory=dict)

    @property
    def request_key(self) -> str:
        """The key of the metric's resource in `Pod.requests`."""
        return f"{self.container}/{self.name}" if self.container else self.name


class SelectPolicy(Enum):
    """Which policy decides, as behavior's selectPolicy has it."""

    MAX = "Max"
    MIN = "Min"
    DISABLED = "Disabled"


class PolicyType(Enum):
    """The unit of a policy's value."""

    PODS = "Pods"
    PERCENT = "Percent"


@dataclass(frozen=True, slots=True)
class ScalingPolicy:
    """How many pods, or how many percent of them, may be added or removed in a period."""

    type: PolicyType
    value: int
    period_s: int


@dataclass(frozen=True, slots=True)
class ScalingRules:
    """One direction of a behavior. None means the controller's setting."""

    policies: tuple[ScalingPolicy, ...]
    stabilization_s: int | None = None
    select: SelectPolicy = SelectPolicy.MAX
    tolerance: float | None = None

    @property
    def longest_period_s(self) -> int:
        """The longest period of the policies."""
        return max((each.period_s for each in self.policies), default=0)


# What the API server fills in where a behavior is given in part.
DEFAULT_SCALE_UP = ScalingRules(
    (ScalingPolicy(PolicyType.PODS, 4, 15), ScalingPolicy(PolicyType.PERCENT, 100, 15)), stabilization_s=0
)
DEFAULT_SCALE_DOWN = ScalingRules((ScalingPolicy(PolicyType.PERCENT, 100, 15),))


@dataclass(frozen=True, slots=True)
class Behavior:
    """How fast replicas may change in each direction."""

    scale_up: ScalingRules = DEFAULT_SCALE_UP
    scale_down: ScalingRules = DEFAULT_SCALE_DOWN


@dataclass(frozen=True, slots=True)
class HpaSpec:
    """A HorizontalPodAutoscaler. Without a behavior the controller's own limits hold: at most max(2 × current, 4)."""

    max_replicas: int
    metrics: tuple[MetricSpec, ...]
    min_replicas: int = 1
    behavior: Behavior | None = None
    name: str = ""
    target: tuple[str, str] = ("Deployment", "")  # kind, name


@dataclass(frozen=True, slots=True)
class HpaSettings:
    """Flags of kube-controller-manager, with its defaults: --horizontal-pod-autoscaler-…"""

    sync_period_s: float = 15.0
    tolerance: float = 0.1
    downscale_stabilization_s: float = 300.0
    cpu_initialization_period_s: float = 300.0
    initial_readiness_delay_s: float = 30.0
    scale_to_zero: bool = False  # the feature gate HPAScaleToZero
