"""Custom metrics of Python models (`pb_utils.MetricFamily`), summed over the instances.

As in Triton, the instances of a model share a metric: counters and histograms with the same name and labels are added,
and the gauge written last counts. A restarted process starts at zero, so the sums of the former processes are kept, and
a counter never falls. All metrics of an instance disappear with it.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeAlias

from conch.server.backends.child.conch_child.ipc.metric_area import MAX_SERIES
from conch.server.backends.python.metric_reader import MetricReader
from conch.server.observability.metrics.custom import MetricSample

# When a sample was changed, in monotonic nanoseconds, and the sample.
_Timed: TypeAlias = tuple[int, MetricSample]


class InstanceMetrics:
    """The custom metrics of one instance, over all processes that it has had."""

    def __init__(self) -> None:
        self._reader: MetricReader | None = None
        self._past: list[MetricSample] = []

    def attach(self, memory: memoryview) -> None:
        """Read the metrics of a new process from this memory."""
        self._reader = MetricReader(memory)

    def process_ended(self) -> None:
        """Keep counters and histograms, drop gauges."""
        kept = [sample for _, sample in self.timed_samples() if sample.kind != "gauge"]
        self._past = _added(kept)[:MAX_SERIES]
        self._reader = None

    def clear(self) -> None:
        """Drop all samples."""
        self._reader = None
        self._past.clear()

    def timed_samples(self) -> list[_Timed]:
        """Return every sample with its time; a metric has one for the current process and one for all former ones."""
        current = self._reader.read() if self._reader is not None else []
        return [*((0, sample) for sample in self._past), *current]


def total(instances: Iterable[InstanceMetrics]) -> list[MetricSample]:
    """Return one sample for each family, kind and set of labels."""
    timed = [sample for instance in instances for sample in instance.timed_samples()]
    return _added(sample for _, sample in sorted(timed, key=lambda pair: pair[0]))


def _added(samples: Iterable[MetricSample]) -> list[MetricSample]:
    """Add up samples that are in the order of their times."""
    sums: dict[object, MetricSample] = {}
    for sample in samples:
        key = (sample.family, sample.kind, tuple(sorted(sample.labels.items())))
        before = sums.get(key)
        sums[key] = sample if before is None or sample.kind == "gauge" else _sum(before, sample)
    return list(sums.values())


def _sum(one: MetricSample, other: MetricSample) -> MetricSample:
    # Buckets differ if the model was edited before a restart, or between two models: then the newer ones count.
    if [bound for bound, _ in one.buckets] != [bound for bound, _ in other.buckets]:
        return other
    buckets = tuple((bound, a + b) for (bound, a), (_, b) in zip(one.buckets, other.buckets, strict=True))
    return replace(other, value=one.value + other.value, buckets=buckets)
