"""Metrics of all listeners: connections, bytes and refused requests."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Protocol

from conch.domain.exposition import Family, Labels, Point
from conch.domain.metrics import server
from conch.protocols.connections.traffic import Traffic
from conch.server.observability.metrics.reading import Reading, read


class MeteredListener(Protocol):
    """A listener, as its metrics see it."""

    traffic: Traffic

    @property
    def connections(self) -> int:
        """How many clients are connected."""


_READINGS: tuple[Reading[MeteredListener], ...] = (
    Reading(server.CONNECTIONS, lambda listener: listener.connections),
    Reading(server.RECEIVED_BYTES, lambda listener: listener.traffic.received_bytes),
    Reading(server.SENT_BYTES, lambda listener: listener.traffic.sent_bytes),
)


def listener_families(listeners: Mapping[str, MeteredListener]) -> Iterator[Family]:
    """Yield the families of listeners by protocol, and the sum of what they refused."""
    yield from read(_READINGS, [(Labels({"protocol": protocol}), one) for protocol, one in listeners.items()])
    refused: Counter[str] = Counter()
    for listener in listeners.values():
        refused.update(listener.traffic.refused)
    yield Family.of(server.REJECTED_REQUESTS, [Point(count, {"reason": reason}) for reason, count in refused.items()])
