"""What models measure about themselves: the value that carries it from a backend, and how values become families.

Instances of a model measure apart, each in a process of its own, what reads as one series. As in Triton, where they
share it, their counters and histograms add up, and of their gauges the last counts.
"""

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace

from conch.observability.exposition import Family, Kind, Point, histogram_points

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


@dataclass(frozen=True, slots=True)
class MetricSample:
    """One custom metric of a model at one moment, under its own labels; no label is added to them."""

    family: str
    description: str
    kind: Kind
    labels: Mapping[str, str]
    value: float  # a histogram's sum
    buckets: tuple[tuple[float, float], ...] = ()  # (upper bound, cumulative count), the last bound being infinity


def is_metric_name(text: str) -> bool:
    """Return whether Prometheus accepts a family of this name."""
    return _NAME.fullmatch(text) is not None


def is_label_name(text: str) -> bool:
    """Return whether Prometheus accepts a label of this name."""
    return _LABEL.fullmatch(text) is not None


def label_name(text: str) -> str:
    """Return the nearest text that Prometheus accepts as a label's name; `text` begins with a letter or `_`."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", text)


def custom_families(samples: Iterable[MetricSample], reserved: Container[str]) -> list[Family]:
    """Put samples into families. What would make the whole scrape unreadable is left out.

    That is a sample with a name that is none, with a name of the server's own, or of another kind than its family.
    """
    merged: dict[str, dict[tuple[tuple[str, str], ...], MetricSample]] = {}
    kinds: dict[str, Kind] = {}
    for sample in samples:
        if sample.family in reserved or not _well_named(sample):
            continue
        if kinds.setdefault(sample.family, sample.kind) != sample.kind:
            continue
        series = merged.setdefault(sample.family, {})
        key = tuple(sorted(sample.labels.items()))
        series[key] = _merge(series[key], sample) if key in series else sample
    return [_family(list(series.values())) for series in merged.values()]


def _well_named(sample: MetricSample) -> bool:
    return is_metric_name(sample.family) and all(map(is_label_name, sample.labels))


def _merge(one: MetricSample, other: MetricSample) -> MetricSample:
    if one.kind == "gauge":
        return other
    if [bound for bound, _ in one.buckets] != [bound for bound, _ in other.buckets]:
        return one
    buckets = tuple((bound, count + more) for (bound, count), (_, more) in zip(one.buckets, other.buckets, strict=True))
    return replace(one, value=one.value + other.value, buckets=buckets)


def _family(samples: list[MetricSample]) -> Family:
    first = samples[0]
    points: list[Point] = []
    for sample in samples:
        if sample.kind == "histogram":
            points += histogram_points(sample.buckets, sample.value, sample.labels)
        else:
            points.append(Point(sample.value, sample.labels))
    return Family(first.family, first.kind, first.description, points)
