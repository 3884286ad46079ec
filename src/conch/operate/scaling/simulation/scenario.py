"""What is simulated: load, service, start of replicas, delays of the monitoring, faults, and the objective."""

from dataclasses import dataclass, field
from enum import Enum

from conch.operate.scaling.hpa.spec import HpaSettings
from conch.operate.scaling.simulation.queries import MetricDelays
from conch.operate.scaling.simulation.service import ServiceModel
from conch.operate.scaling.traffic import TrafficCurve


class FaultKind(Enum):
    """What goes wrong. `duration_s` is of the first two, `count` of the others."""

    PROMETHEUS_DOWN = "prometheus-down"  # queries fail
    METRIC_MISSING = "metric-missing"  # queries succeed, without a series
    KILL = "kill"  # replicas die with the requests that they hold, and start again
    DRAIN = "drain"  # a node is drained: replicas end orderly and start elsewhere
    NEVER_READY = "never-ready"  # the next replicas that start never become ready


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault at a time."""

    kind: FaultKind
    at_s: int
    duration_s: int = 0
    count: int = 1


@dataclass(frozen=True, slots=True)
class ColdStart:
    """From a new pod to a ready one: `pull_s` as Pending, then loading and warm-up without metrics."""

    pull_s: int = 0
    load_s: int = 40
    warm_up_s: int = 0

    @property
    def total_s(self) -> int:
        """All of it."""
        return self.pull_s + self.load_s + self.warm_up_s


@dataclass(frozen=True, slots=True)
class Scenario:
    """One simulation, but for the policy. `slo_s` is the latency that `objective` of all requests must meet."""

    traffic: TrafficCurve
    service: ServiceModel
    cold_start: ColdStart = field(default_factory=ColdStart)
    slo_s: float = 0.2
    slo_is_first_token: bool = False
    objective: float = 0.99
    initial_replicas: int = 1
    max_queue: float = float("inf")  # waiting requests of a replica; more are rejected
    timing: MetricDelays = field(default_factory=MetricDelays)
    settings: HpaSettings = field(default_factory=HpaSettings)
    faults: tuple[Fault, ...] = ()
