"""Custom metrics of Python models (`pb_utils.MetricFamily`), summed over the instances.

As in Triton, the instances of a model share a metric: counters and histograms with the same name and labels are added,
and the gauge written last counts. A restarted process starts at zero, so the sums of the former processes are kept, and
a counter never falls. All metrics of an instance disappear with it.
"""

from collections.abc import Iterable
from dataclasses import replace
from itertools import accumulate
from math import inf
from time import monotonic_ns
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import orjson

from conch.server.backends.child.conch_child.ipc.metric_area import (
    COUNTS,
    DEFINITION_BYTES,
    FIRST,
    MAX_RECORDS,
    MAX_SERIES,
    NUMBER_OF_COUNTS,
    SERIAL,
    SIZE,
    TIME,
    VALUE,
    WORD,
)
from conch.server.backends.child.conch_child.ipc.wire import WireError, exceeds
from conch.server.backends.processes import untrusted
from conch.server.observability.metrics.custom import MetricSample

_MAX_DEFINITION_BYTES = 1 << 16
_MAX_DEFINITION_VALUES = 4096


class _Definition:
    """What does not change about a series."""

    __slots__ = ("bounds", "description", "family", "kind", "labels", "serial")

    def __init__(self, serial: int, text: bytes) -> None:
        """Read a definition. Raises WireError."""
        self.serial = serial
        if len(text) > _MAX_DEFINITION_BYTES or exceeds(text, _MAX_DEFINITION_VALUES):
            raise WireError(f"the definition of a metric has {len(text)} bytes")
        try:
            fields = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise WireError(f"unreadable definition of a metric: {error}") from None
        family, description, kind, labels, bounds = untrusted.items(fields, 5, "the definition of a metric")
        if kind not in ("counter", "gauge", "histogram"):
            raise WireError(f"unknown kind of metric {untrusted.shown(kind)}")
        self.family = untrusted.name(family, "the name of a metric")
        self.description = untrusted.text(description, "the description of a metric")
        self.kind: Any = kind
        self.labels = untrusted.labels(labels)
        numbers = [untrusted.number(bound, "a bound") for bound in untrusted.array(bounds, "bounds")]
        self.bounds = (*numbers, inf) if kind == "histogram" else ()


class MetricReader:
    """Reads the metrics of one process."""

    def __init__(self, memory: memoryview) -> None:
        self._words = np.frombuffer(memory, "<u8")
        self._definitions: dict[int, _Definition] = {}

    def read(self) -> list[tuple[int, MetricSample]]:
        """Return the samples, each with the time of its last change in monotonic nanoseconds."""
        end = min(int(self._words[0]), len(self._words))
        if end <= FIRST:
            return []
        # A copy, which does not change while it is read.
        words = self._words[:end].copy()
        values = words.view("<f8")
        samples: list[tuple[int, MetricSample]] = []
        known, self._definitions = self._definitions, {}
        now, position = monotonic_ns(), FIRST
        for _ in range(MAX_RECORDS):
            if position + COUNTS > end or len(samples) >= MAX_SERIES:
                break
            size, serial, time = words[position + SIZE : position + TIME + 1].tolist()
            if size < COUNTS or position + size > end:
                break
            record = words[position : position + size]
            definition = self._definition(known.get(position), record) if serial else None
            if definition is not None and len(record) >= COUNTS + len(definition.bounds):
                self._definitions[position] = definition
                counts = record[COUNTS : COUNTS + len(definition.bounds)].tolist()
                sample = MetricSample(
                    definition.family,
                    definition.description,
                    definition.kind,
                    definition.labels,
                    float(values[position + VALUE]),
                    tuple(zip(definition.bounds, accumulate(counts), strict=True)),
                )
                samples.append((min(time, now), sample))
            position += size
        return samples

    def _definition(self, known: _Definition | None, record: npt.NDArray[np.uint64]) -> _Definition | None:
        serial = int(record[SERIAL])
        if known is not None and known.serial == serial:
            return known
        counts, size = int(record[NUMBER_OF_COUNTS]), int(record[DEFINITION_BYTES])
        if COUNTS + counts + -(-size // WORD) > len(record):
            return None
        try:
            definition = _Definition(serial, record[COUNTS + counts :].tobytes()[:size])
        except WireError:
            return None
        return definition if len(definition.bounds) == counts else None


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


def _sum(sample: MetricSample, other: MetricSample) -> MetricSample:
    # Buckets differ if the model was edited before a restart, or between two models: then the newer ones count.
    if [bound for bound, _ in sample.buckets] != [bound for bound, _ in other.buckets]:
        return other
    buckets = tuple((bound, a + b) for (bound, a), (_, b) in zip(sample.buckets, other.buckets, strict=True))
    return replace(other, value=sample.value + other.value, buckets=buckets)
