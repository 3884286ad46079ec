"""The state of a tunnel, and its metrics."""

from collections.abc import Iterator

from conch.domain.exposition import Family, Point, pieces
from conch.domain.metrics.metric import MetricDefinition
from conch.domain.metrics.tunnel import CONNECTS, FAILURES, LAST_CONNECT, UP
from conch.operate.tunnel.failures import ALL_FAILURES, TunnelFailure


class TunnelState:
    """Counters of one tunnel. All reasons exist from the start, so that the first failure is an increase."""

    def __init__(self, target: str) -> None:
        self._labels = {"target": target}
        self.up = False
        self.connects = 0
        self.last_connect = 0.0  # Unix time, 0 for never
        self.failures = dict.fromkeys((failure.reason for failure in ALL_FAILURES), 0)

    def count(self, failure: TunnelFailure) -> None:
        """Count a failure."""
        self.failures[failure.reason] += 1

    def exposition(self) -> Iterator[bytes]:
        """Yield the text of a scrape."""
        labels = self._labels
        yield from _pieces(UP, [Point(int(self.up), labels)])
        yield from _pieces(CONNECTS, [Point(self.connects, labels)])
        yield from _pieces(LAST_CONNECT, [Point(self.last_connect, labels)] if self.last_connect else [])
        failures = [Point(count, {**labels, "reason": reason}) for reason, count in self.failures.items()]
        yield from _pieces(FAILURES, failures)


def _pieces(metric: MetricDefinition, points: list[Point]) -> Iterator[bytes]:
    return pieces(Family(metric.name, metric.kind, metric.help, points))
