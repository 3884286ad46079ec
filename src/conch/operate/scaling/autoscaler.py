"""What the HPA's algorithm reads and decides: values, shared by the simulation and by `conch fleet`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class PodPhase(Enum):
    """The phase of a pod, as its status has it."""

    PENDING = "Pending"
    RUNNING = "Running"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod as the autoscaler sees it. Times are seconds of any one clock.

    `requests` is by resource name, such as "cpu" in cores, summed over containers, and by "container/resource".
    `count` is how many pods like this one it stands for, with equal values: simulations have thousands.
    """

    name: str
    phase: PodPhase = PodPhase.RUNNING
    ready: bool = True
    started_s: float | None = 0.0
    ready_since_s: float | None = 0.0  # when the ready condition last changed
    deleted: bool = False
    requests: Mapping[str, float] = field(default_factory=dict)
    count: int = 1


@dataclass(frozen=True, slots=True)
class MetricReading:
    """What the metrics API says of one metric: values by pod for Pods and Resource metrics, one value for others.

    `error` is the reason why the metric could not be read, such as "unable to get metric …". `measured_at_s` (default:
    now) and `window_s` are what the resource metrics API reports beside the values.
    """

    by_pod: Mapping[str, float] = field(default_factory=dict)
    value: float | None = None
    error: str = ""
    measured_at_s: float | None = None
    window_s: float = 60.0


@dataclass(frozen=True, slots=True)
class ScalingEvent:
    """A change of the number of replicas at a time."""

    at_s: float
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class HpaCondition:
    """A condition of the status of an autoscaler, with Kubernetes' names: type, status, reason, message."""

    type: str
    status: bool
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """The desired replicas, and why: `reason` and `message` as in the conditions of the object's status.

    `usage` is what status.currentMetrics shows, in the order of the metrics: an average per pod, a total, or a
    percentage of the request; None where the metric could not be read.
    """

    desired: int
    reason: str = ""
    message: str = ""
    conditions: tuple[HpaCondition, ...] = ()
    usage: tuple[float | None, ...] = ()
