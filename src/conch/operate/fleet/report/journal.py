"""What happened in a fleet: events, and samples of its state."""

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class FleetEvent:
    """An event at real seconds since the start. `subject` is a replica, a program or the autoscaler."""

    at_s: float
    kind: str
    subject: str
    message: str


@dataclass(frozen=True, slots=True)
class FleetSample:
    """The state at real seconds since the start. None is unknown: no answer yet, or a metric that cannot be read."""

    at_s: float
    desired: int
    replicas: int
    ready: int
    ratio: float | None = None  # of the first metric of the policy, averaged over the replicas
    clients: int = 0
    rate: float | None = None  # answers per second
    p50_s: float | None = None
    p99_s: float | None = None
    answered: int = 0
    failed: int = 0


@dataclass(slots=True)
class Journal:
    """Events and samples in their order. `clock` returns real seconds since the start; `on_event` shows an event."""

    clock: Callable[[], float]
    on_event: Callable[[FleetEvent], None] = lambda _event: None
    events: list[FleetEvent] = field(default_factory=list)
    samples: list[FleetSample] = field(default_factory=list)

    def record(self, kind: str, subject: str, message: str) -> None:
        """Add an event of now."""
        event = FleetEvent(self.clock(), kind, subject, message)
        self.events.append(event)
        self.on_event(event)
