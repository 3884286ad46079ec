"""What a model measures about itself: the value that carries it from a backend to `/metrics`."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MetricSample:
    """One custom metric of a model at one moment, under its own labels; no label is added to them."""

    family: str
    description: str
    kind: str  # "counter" | "gauge" | "histogram"
    labels: Mapping[str, str]
    value: float  # a histogram's sum
    buckets: tuple[tuple[float, float], ...] = ()  # (upper bound, cumulative count), the last bound being infinity
