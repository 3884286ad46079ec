"""Custom metrics of a model: `MetricFamily` and `Metric`, and how their values get to the server.

Values live here. What has changed leaves with the next frame of answers or, where none goes out, a moment later by a
thread of its own, which exists only in models that have metrics. The server adds up what the instances of a model say.
"""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_left
from itertools import accumulate
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

from .errors import TritonModelException
from .session import current

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"

# How long a change may wait for company when no answer goes out.
_FLUSH_AFTER_S = 0.05

Sample = Tuple[Any, ...]


class MetricRegistry:
    """The metrics of this process, and which of them have changed since they were last sent."""

    def __init__(self, send: Callable[[], None]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._families: Dict[str, Tuple[str, str]] = {}
        self._changed: Dict[int, Any] = {}
        self._last_number = 0
        self._wake: Optional[threading.Event] = None

    def declare(self, name: str, description: str, kind: str) -> None:
        """Note a family. Raises TritonModelException if there is one of that name that is not the same."""
        with self._lock:
            if self._families.setdefault(name, (description, kind)) != (description, kind):
                raise TritonModelException(
                    "Error when creating MetricFamily: '{}' exists already with another kind or description".format(
                        name
                    )
                )

    def enrol(self) -> int:
        """Give a metric its number."""
        with self._lock:
            self._last_number += 1
            if self._wake is None:
                self._wake = threading.Event()
                threading.Thread(target=self._flush, args=(self._wake,), name="conch-metrics", daemon=True).start()
            return self._last_number

    def changed(self, number: int, sample: Callable[[], Sample]) -> None:
        """Note that a metric has a new value; `sample` will tell it when it is sent."""
        self._changed[number] = sample
        wake = self._wake
        if wake is not None and not wake.is_set():
            wake.set()

    def take(self) -> Tuple[Sample, ...]:
        """Return the samples of all metrics that have changed since the last call.

        The caller sends them before anyone else can take newer ones: it holds the channel's `writing`.
        """
        if not self._changed:
            return ()
        samples = []
        while self._changed:
            _, sample = self._changed.popitem()
            samples.append(sample())
        return tuple(samples)

    def _flush(self, wake: threading.Event) -> None:
        while wake.wait():
            time.sleep(_FLUSH_AFTER_S)
            wake.clear()
            try:
                self._send()
            except OSError:
                return  # the server has gone


class MetricFamily:
    """Metrics of one name that differ in their labels.

    `kind` is `MetricFamily.COUNTER`, `.GAUGE` or `.HISTOGRAM`. A second family of the same name must agree in kind and
    description and is the same one. Raises TritonModelException if it does not, or for an unknown kind.
    """

    COUNTER = COUNTER
    GAUGE = GAUGE
    HISTOGRAM = HISTOGRAM

    def __init__(self, name: str, description: str, kind: str) -> None:
        if kind not in (COUNTER, GAUGE, HISTOGRAM):
            raise TritonModelException("Error when creating MetricFamily: {!r} is no kind of metric".format(kind))
        self.name = name
        self.description = description
        self.kind = kind
        self._registry = current().metrics
        self._registry.declare(name, description, kind)

    def Metric(  # noqa: N802 - Triton's name
        self, labels: Optional[Dict[str, str]] = None, buckets: Optional[Sequence[float]] = None
    ) -> Metric:
        """Make a metric of this family; `buckets`, ascending upper bounds, are for histograms and needed there.

        Raises TritonModelException.
        """
        if labels is not None and not isinstance(labels, dict):
            raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
        if buckets is not None and not isinstance(buckets, (list, tuple)):
            raise TritonModelException("Failed to create metric. Buckets must be a list.")
        if self.kind == HISTOGRAM:
            if not buckets:
                raise TritonModelException("Failed to create metric. Missing required buckets.")
            if list(buckets) != sorted(set(buckets)):
                raise TritonModelException("Failed to create metric. Buckets must ascend.")
        elif buckets:
            raise TritonModelException("Failed to create metric. Unexpected buckets found.")
        return Metric(self, self._registry, labels or {}, buckets or ())


class Metric:
    """One time series; made by `MetricFamily.Metric`. It is gone from the server when the object is.

    `value` is what this process has counted; the server shows the sum over all instances of the model.
    """

    def __init__(
        self, family: MetricFamily, registry: MetricRegistry, labels: Dict[str, str], buckets: Sequence[float]
    ) -> None:
        self._family = family
        self._registry = registry
        self._labels = {str(name): str(value) for name, value in labels.items()}
        self._bounds = [float(bound) for bound in buckets]
        self._counts = [0] * (len(self._bounds) + 1)
        self._value = 0.0
        self._lock = threading.Lock()
        self._number = registry.enrol()
        self._changed()

    def __del__(self) -> None:
        number = getattr(self, "_number", None)
        if number is not None:
            self._registry.changed(number, lambda: (number,))

    def increment(self, value: float) -> None:
        """Add to a counter, or to a gauge. Raises TritonModelException for a histogram or a falling counter."""
        if self._family.kind == HISTOGRAM:
            raise TritonModelException("Failed to increment metric value: a histogram is observed, not incremented")
        if self._family.kind == COUNTER and value < 0:
            raise TritonModelException("Failed to increment metric value: a counter cannot fall")
        with self._lock:
            self._value += float(value)
        self._changed()

    def set(self, value: float) -> None:
        """Set a gauge. Raises TritonModelException for anything else."""
        if self._family.kind != GAUGE:
            raise TritonModelException(
                "Failed to set metric value: only a gauge can be set, this is a {}".format(self._family.kind)
            )
        with self._lock:
            self._value = float(value)
        self._changed()

    def observe(self, value: float) -> None:
        """Count a value in a histogram. Raises TritonModelException for anything else."""
        if self._family.kind != HISTOGRAM:
            raise TritonModelException(
                "Failed to observe metric value: only a histogram observes, this is a {}".format(self._family.kind)
            )
        with self._lock:
            self._value += float(value)
            self._counts[bisect_left(self._bounds, value)] += 1
        self._changed()

    def value(self) -> float:
        """Return the value of a counter or gauge. Raises TritonModelException for a histogram."""
        if self._family.kind == HISTOGRAM:
            raise TritonModelException("Failed to get metric value: a histogram has no single value")
        return self._value

    def _changed(self) -> None:
        self._registry.changed(self._number, self._sample)

    def _sample(self) -> Sample:
        family = self._family
        with self._lock:
            buckets = tuple(zip([*self._bounds, math.inf], accumulate(self._counts))) if self._bounds else ()
            return self._number, family.name, family.description, family.kind, self._labels, self._value, buckets
