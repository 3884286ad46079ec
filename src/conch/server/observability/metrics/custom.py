"""Custom metrics of models: samples from backends, and their conversion to families."""

import logging
import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from conch.domain.exposition import Buckets, Family, Point, Value
from conch.domain.metrics.metric import Kind, is_label_name, is_metric_name

_log = logging.getLogger(__name__)

# Maximum of a family. Each series costs memory in Prometheus for hours.
MAX_SERIES = 1000
_MAX_REPORTS = 100
_REASONS = {
    "name": "its name is invalid, or that of a metric of the server",
    "kind": "models define it with different kinds",
    "labels": "labels are invalid, or two models report the same labels",
    "limit": f"it has more than {MAX_SERIES} combinations of labels",
}


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


def label_name(text: str) -> str:
    """Return a valid label name: other characters become `_`. `text` must begin with a letter or `_`."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", text)


class CustomMetrics:
    """Groups samples to families, and omits those that would invalidate the scrape or are too many.

    The reasons: `name`, invalid or that of a metric of the server; `kind`, another than that of its family; `labels`,
    invalid or those of another series of the family; `limit`, more than 1000 series in the family. The first of each
    family and reason is logged.
    """

    def __init__(self, reserved: Container[str]) -> None:
        self._reserved = reserved
        self._reported: set[tuple[str, str]] = set()

    @property
    def problem(self) -> str:
        """Which family has lost series first, "" if none has."""
        return next((f"custom metric '{name}': {_REASONS[reason]}" for name, reason in sorted(self._reported)), "")

    def families(self, samples: Iterable[MetricSample]) -> list[Family]:
        """Return the families of one scrape; the last has the number of series that were omitted, by reason."""
        families: dict[str, dict[tuple[tuple[str, str], ...], MetricSample]] = {}
        dropped = dict.fromkeys(_REASONS, 0)
        for sample in samples:
            series = families.get(sample.family, {})
            labels = tuple(sorted(sample.labels.items()))
            reason = self._reason(sample, series, labels)
            if reason:
                dropped[reason] += 1
                self._report(sample, reason)
            else:
                families.setdefault(sample.family, series)[labels] = sample
        points = [Point(count, {"reason": reason}) for reason, count in dropped.items()]
        return [
            *(_family(list(series.values())) for series in families.values()),
            Family.of("conch_custom_series_dropped", points),
        ]

    def _reason(
        self,
        sample: MetricSample,
        series: Mapping[tuple[tuple[str, str], ...], MetricSample],
        labels: tuple[tuple[str, str], ...],
    ) -> str:
        """Return why a sample is omitted, empty if it is not."""
        if not is_metric_name(sample.family) or sample.family in self._reserved:
            return "name"
        if series and next(iter(series.values())).kind != sample.kind:
            return "kind"
        if labels in series or not all(map(is_label_name, sample.labels)):
            return "labels"
        return "limit" if len(series) >= MAX_SERIES else ""

    def _report(self, sample: MetricSample, reason: str) -> None:
        if (sample.family, reason) not in self._reported and len(self._reported) < _MAX_REPORTS:
            self._reported.add((sample.family, reason))
            _log.warning('custom metric "%s" is not exported with all series: %s', sample.family, _REASONS[reason])


def _family(samples: list[MetricSample]) -> Family:
    first = samples[0]
    return Family(
        first.family, first.kind, first.description, [Point(_value(sample), sample.labels) for sample in samples]
    )


def _value(sample: MetricSample) -> Value:
    if sample.kind != "histogram":
        return sample.value
    bounds, counts = zip(*sample.buckets, strict=True) if sample.buckets else ((), ())
    return Buckets(bounds, counts, sample.value)
