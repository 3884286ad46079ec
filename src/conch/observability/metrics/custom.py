"""What models measure about themselves: the value that carries it from a backend, and how values become families."""

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from conch.observability.metrics.exposition import Family, Kind, Point, histogram_points

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


@dataclass(frozen=True, slots=True)
class MetricSample:
    """One custom metric of a model at one moment, under its own labels; no label is added to them.

    A backend gives a family's labels once: it adds up what its instances have measured apart.
    """

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

    That is a sample with a name that is none, with a name of the server's own, of another kind than its family, or
    with labels that the family has already.
    """
    families: dict[str, dict[tuple[tuple[str, str], ...], MetricSample]] = {}
    kinds: dict[str, Kind] = {}
    for sample in samples:
        if sample.family in reserved or not _well_named(sample):
            continue
        if kinds.setdefault(sample.family, sample.kind) == sample.kind:
            labels = tuple(sorted(sample.labels.items()))
            families.setdefault(sample.family, {}).setdefault(labels, sample)
    return [_family(list(series.values())) for series in families.values()]


def _well_named(sample: MetricSample) -> bool:
    return is_metric_name(sample.family) and all(map(is_label_name, sample.labels))


def _family(samples: list[MetricSample]) -> Family:
    first = samples[0]
    points: list[Point] = []
    for sample in samples:
        if sample.kind == "histogram":
            points += histogram_points(sample.buckets, sample.value, sample.labels)
        else:
            points.append(Point(sample.value, sample.labels))
    return Family(first.family, first.kind, first.description, points)
