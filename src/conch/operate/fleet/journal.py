"""What happened in a fleet: events, samples of its state, and the verdict on a demonstration."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise


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


@dataclass(frozen=True, slots=True)
class FleetVerdict:
    """`path` are the numbers of ready replicas, one after another; `lost` are requests without an answer."""

    path: Sequence[int]
    minimum: int
    maximum: int
    sent: int
    lost: int
    errors: Mapping[str, int]
    peak_p99_s: float | None
    scaled_p99_s: float | None

    @property
    def peak(self) -> int:
        """The highest number of ready replicas."""
        return max(self.path, default=0)

    @property
    def scaled(self) -> bool:
        """Whether the replicas reached the maximum and came back to the minimum."""
        return self.peak == self.maximum and bool(self.path) and self.path[-1] == self.minimum

    @property
    def passed(self) -> bool:
        """Whether the replicas followed the load and no request was lost."""
        return self.scaled and self.sent > 0 and self.lost == 0

    def lines(self) -> list[str]:
        """Return the verdict in lines."""
        p99 = ""
        if self.peak_p99_s is not None and self.scaled_p99_s is not None:
            p99 = f"; P99 under load {self.peak_p99_s:.2f} s before and {self.scaled_p99_s:.2f} s after scaling up"
        lines = [
            f"ready replicas: {' → '.join(map(str, self.path))}" + ("" if self.scaled else self._expected()),
            f"requests: {self.sent:,} sent, {self.lost} lost{p99}",
        ]
        return lines + [f"  {count} × {message}" for message, count in self.errors.items()]

    def _expected(self) -> str:
        return f" (expected: {self.minimum} → {self.maximum} → {self.minimum})"


def judge(
    samples: Sequence[FleetSample], limits: tuple[int, int], *, sent: int, lost: int, errors: Mapping[str, int]
) -> FleetVerdict:
    """Return the verdict on the samples of a run; `limits` are minimum and maximum of the replicas."""
    counts = [sample.ready for sample in samples]
    path = counts[:1] + [after for before, after in pairwise(counts) if after != before]
    most_clients = max((sample.clients for sample in samples), default=0)
    peak = [sample for sample in samples if sample.clients == most_clients and sample.p99_s is not None]
    few = [sample.p99_s for sample in peak if sample.ready < max(counts) and sample.p99_s is not None]
    return FleetVerdict(
        path,
        *limits,
        sent=sent,
        lost=lost,
        errors=errors,
        peak_p99_s=max(few, default=None),
        scaled_p99_s=peak[-1].p99_s if peak else None,
    )
