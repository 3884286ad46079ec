"""Custom metrics of models: samples from backends, and their conversion to families."""

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from conch.metric_catalog.metric import Kind
from conch.observability.metrics.exposition import Buckets, Family, Point, Value

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


@dataclass(frozen=True, slots=True)
class MetricSample:
    """One custom metric of a model, with its labels only.

    A backend reports each combination of family and labels once: it sums those of its instances.
    """

    family: str
    description: str
    kind: Kind
    labels: Mapping[str, str]
    value: float  # a histogram's sum
    buckets: tuple[tuple[float, float], ...] = ()  # (upper bound, cumulative count), the last bound being infinity


def is_metric_name(text: str) -> bool:
    """Return whether a text is a valid name of a family in Prometheus."""
    return _NAME.fullmatch(text) is not None


def is_label_name(text: str) -> bool:
    """Return whether a text is a valid name of a label in Prometheus."""
    return _LABEL.fullmatch(text) is not None


def label_name(text: str) -> str:
    """Return a valid label name: other characters become `_`. `text` must begin with a letter or `_`."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", text)


def custom_families(samples: Iterable[MetricSample], reserved: Container[str]) -> list[Family]:
    """Group samples to families. Samples that would invalidate the scrape are omitted.

    These have an invalid or `reserved` name, another kind than their family, or labels that the family already has.
    """
    families: dict[str, dict[tuple[tuple[str, str], ...], MetricSample]] = {}
    kinds: dict[str, Kind] = {}
    for sample in samples:
        if sample.family in reserved or not _has_valid_names(sample):
            continue
        if kinds.setdefault(sample.family, sample.kind) == sample.kind:
            labels = tuple(sorted(sample.labels.items()))
            families.setdefault(sample.family, {}).setdefault(labels, sample)
    return [_family(list(series.values())) for series in families.values()]


def _has_valid_names(sample: MetricSample) -> bool:
    return is_metric_name(sample.family) and all(map(is_label_name, sample.labels))


def _family(samples: list[MetricSample]) -> Family:
    first = samples[0]
    return Family(first.family, first.kind, first.description, [Point(_value(one), one.labels) for one in samples])


def _value(sample: MetricSample) -> Value:
    if sample.kind != "histogram":
        return sample.value
    bounds, counts = zip(*sample.buckets, strict=True) if sample.buckets else ((), ())
    return Buckets(bounds, counts, sample.value)
