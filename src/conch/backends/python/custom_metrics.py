"""What Python models count with `pb_utils.MetricFamily`, added up over the instances.

As in Triton, where the instances of a model share a metric: counters and histograms of one name and one set of labels
add up, and of gauges the last value written counts. An instance that is restarted begins at nothing, so what its former
lives have counted is kept: a counter never falls. All of it vanishes with the instance.
"""

from collections.abc import Iterable
from dataclasses import replace
from time import monotonic_ns
from typing import Any, TypeAlias

from conch.observability.metrics.custom import MetricSample

# A sample and when it came, in monotonic nanoseconds.
_Timed: TypeAlias = tuple[int, MetricSample]


class InstanceMetrics:
    """The custom metrics of one instance, over all lives of its process."""

    def __init__(self) -> None:
        self._living: dict[int, _Timed] = {}
        self._past: list[MetricSample] = []

    def update(self, samples: Iterable[tuple[Any, ...]]) -> None:
        """Take samples as `messages` describes them."""
        for number, *sample in samples:
            if sample:
                self._living[number] = (monotonic_ns(), MetricSample(*sample))
            else:
                self._living.pop(number, None)

    def process_ended(self) -> None:
        """Keep what cannot fall; forget gauges, which nobody holds any more."""
        self._past = _added(sample for _, sample in self.timed_samples() if sample.kind != "gauge")
        self._living.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._living.clear()
        self._past.clear()

    def timed_samples(self) -> list[_Timed]:
        """Return every sample with its time; the lives of one metric are several samples."""
        return [*((0, sample) for sample in self._past), *self._living.values()]


def total(instances: Iterable[InstanceMetrics]) -> list[MetricSample]:
    """Return one sample for each family, kind and set of labels."""
    timed = [sample for instance in instances for sample in instance.timed_samples()]
    return _added(sample for _, sample in sorted(timed, key=lambda pair: pair[0]))


def _added(samples: Iterable[MetricSample]) -> list[MetricSample]:
    """Add up samples that come in the order of their times."""
    sums: dict[object, MetricSample] = {}
    for sample in samples:
        key = (sample.family, sample.kind, tuple(sorted(sample.labels.items())))
        before = sums.get(key)
        sums[key] = sample if before is None or sample.kind == "gauge" else _sum(before, sample)
    return list(sums.values())


def _sum(one: MetricSample, other: MetricSample) -> MetricSample:
    # One model has one set of buckets, but may have been edited between two lives; two models may differ: then the
    # newer ones count.
    if [bound for bound, _ in one.buckets] != [bound for bound, _ in other.buckets]:
        return other
    buckets = tuple((bound, a + b) for (bound, a), (_, b) in zip(one.buckets, other.buckets, strict=True))
    return replace(other, value=one.value + other.value, buckets=buckets)
