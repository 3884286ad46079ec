"""What one instance's model counts with `pb_utils.MetricFamily`.

An instance that is restarted begins at nothing, so what its former lives have counted is kept: a counter never falls.
All of it vanishes with the instance. `observability.custom_metrics` adds up the instances.
"""

from collections.abc import Iterable
from dataclasses import replace
from time import monotonic_ns
from typing import Any

from conch.observability.custom_metrics import MetricSample


class InstanceMetrics:
    """The custom metrics of one instance, over all lives of its process."""

    def __init__(self) -> None:
        self._living: dict[int, tuple[int, MetricSample]] = {}
        self._past: dict[object, MetricSample] = {}

    def update(self, samples: Iterable[tuple[Any, ...]]) -> None:
        """Take samples as `messages` describes them."""
        for number, *sample in samples:
            if sample:
                self._living[number] = (monotonic_ns(), MetricSample(*sample))
            else:
                self._living.pop(number, None)

    def process_ended(self) -> None:
        """Keep what cannot fall; forget gauges, which nobody holds any more."""
        for _, sample in self._living.values():
            if sample.kind != "gauge":
                key = (sample.family, tuple(sorted(sample.labels.items())))
                before = self._past.get(key)
                self._past[key] = sample if before is None else _sum(before, sample)
        self._living.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._living.clear()
        self._past.clear()

    def timed_samples(self) -> list[tuple[int, MetricSample]]:
        """Return every sample with when it came (monotonic ns); the lives of one metric are several samples."""
        return [*((0, sample) for sample in self._past.values()), *self._living.values()]


def in_order(instances: Iterable[InstanceMetrics]) -> list[MetricSample]:
    """Return the samples of several instances in the order in which they came: of gauges the last one counts."""
    timed = [sample for instance in instances for sample in instance.timed_samples()]
    return [sample for _, sample in sorted(timed, key=lambda pair: pair[0])]


def _sum(one: MetricSample, other: MetricSample) -> MetricSample:
    # The same model made both, but it may have been edited between its lives: then the newer buckets count.
    if [bound for bound, _ in one.buckets] != [bound for bound, _ in other.buckets]:
        return other
    buckets = tuple((bound, a + b) for (bound, a), (_, b) in zip(one.buckets, other.buckets, strict=True))
    return replace(other, value=one.value + other.value, buckets=buckets)
