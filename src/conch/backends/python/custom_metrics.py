"""Custom metrics of Python models (`pb_utils.MetricFamily`), summed over the instances.

As in Triton, the instances of a model share a metric: counters and histograms with the same name and labels are added,
and the gauge written last counts. A restarted process starts at zero, so the sums of the former processes are kept, and
a counter never falls. All metrics of an instance disappear with it.
"""

from collections.abc import Iterable
from dataclasses import replace
from time import monotonic_ns
from typing import Any, TypeAlias

from conch.backends.child.conch_child.ipc.wire import WireError
from conch.backends.processes import untrusted
from conch.observability.metrics.custom import MetricSample

# When a sample was received, in monotonic nanoseconds, and the sample.
_Timed: TypeAlias = tuple[int, MetricSample]


class InstanceMetrics:
    """The custom metrics of one instance, over all processes that it has had."""

    def __init__(self) -> None:
        self._current: dict[int, _Timed] = {}
        self._past: list[MetricSample] = []

    def update(self, samples: Any) -> None:
        """Update the samples by those of a message; see `messages`. Raises WireError."""
        for fields in untrusted.array(samples, "samples"):
            key, *sample = untrusted.array(fields, "a sample") or [None]
            number = untrusted.integer(key, 0, untrusted.MAX_COUNT, "the number of a series")
            if sample:
                self._current[number] = (monotonic_ns(), _sample(sample))
            else:
                self._current.pop(number, None)

    def process_ended(self) -> None:
        """Keep counters and histograms, drop gauges."""
        self._past = _added(sample for _, sample in self.timed_samples() if sample.kind != "gauge")
        self._current.clear()

    def clear(self) -> None:
        """Drop all samples."""
        self._current.clear()
        self._past.clear()

    def timed_samples(self) -> list[_Timed]:
        """Return every sample with its time; a metric has one for the current process and one for all former ones."""
        return [*((0, sample) for sample in self._past), *self._current.values()]


def _sample(fields: Any) -> MetricSample:
    family, description, kind, labels, value, buckets = untrusted.items(fields, 6, "a sample")
    if kind not in ("counter", "gauge", "histogram"):
        raise WireError(f"unknown kind of metric {untrusted.shown(kind)}")
    pairs = [untrusted.items(pair, 2, "a bucket") for pair in untrusted.array(buckets, "buckets")]
    return MetricSample(
        untrusted.name(family, "the name of a metric"),
        untrusted.name(description, "the description of a metric"),
        kind,
        untrusted.labels(labels),
        untrusted.number(value, "the value of a metric"),
        tuple([(untrusted.number(bound, "a bound"), untrusted.number(count, "a count")) for bound, count in pairs]),
    )


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
