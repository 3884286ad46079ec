"""What a demonstration showed: replicas over time and lost requests. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from conch.operate.fleet.report.journal import FleetSample


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
    counts = [each.ready for each in samples]
    path = counts[:1] + [after for before, after in pairwise(counts) if after != before]
    most_clients = max((each.clients for each in samples), default=0)
    peak = [each for each in samples if each.clients == most_clients and each.p99_s is not None]
    few = [each.p99_s for each in peak if each.ready < max(counts) and each.p99_s is not None]
    return FleetVerdict(
        path,
        *limits,
        sent=sent,
        lost=lost,
        errors=errors,
        peak_p99_s=max(few, default=None),
        scaled_p99_s=peak[-1].p99_s if peak else None,
    )
