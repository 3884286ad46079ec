"""Custom metrics of a model: `MetricFamily` and `Metric`, and how their values get to the server.

Values live here, one series for each family and set of labels. A change is sent at once, so that a scrape which follows
shows it; what follows within a millisecond leaves with the next frame of answers, or by a thread, which exists only in
models that have metrics. The server adds up what the instances of a model say.
"""

from __future__ import annotations

import math
import re
import threading
import time
from bisect import bisect_left
from contextlib import suppress
from itertools import accumulate
from typing import Any, Callable, Dict, Optional, Sequence, Tuple
from weakref import WeakSet, WeakValueDictionary

from .arguments import CallSignature
from .errors import TritonModelException
from .session import current

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"

# Changes that follow each other more closely are sent together, by a thread, unless an answer takes them along.
_FLUSH_AFTER_S = 0.001
_DELETED = (
    "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The 'MetricFamily' object should "
    "be maintained throughout the lifespan of metric."
)

Sample = Tuple[Any, ...]

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")

_FAMILY = CallSignature(
    "__init__",
    "c_python_backend_utils.MetricFamily(name: str, description: str, kind: c_python_backend_utils.MetricKind)",
)
_INCREMENT, _SET, _OBSERVE = (
    CallSignature(name, "(self: c_python_backend_utils.Metric, arg0: float) -> None")
    for name in ("increment", "set", "observe")
)


class MetricRegistry:
    """The metrics of this process, and which of them have changed since they were last sent."""

    def __init__(self, send: Callable[[], None]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._families: Dict[str, Tuple[str, str]] = {}
        self._series: WeakValueDictionary[Any, Series] = WeakValueDictionary()
        self._changed: Dict[int, Any] = {}
        self._last_number = 0
        self._sent = 0.0
        self._wake: Optional[threading.Event] = None

    def declare(self, name: str, description: str, kind: str) -> str:
        """Note a family and return its description: the first one stays.

        Raises TritonModelException if there is one of that name that is of another kind.
        """
        with self._lock:
            known, known_kind = self._families.setdefault(name, (description, kind))
            if known_kind != kind:
                raise TritonModelException(
                    "Error when creating MetricFamily: Family name already exists with different type: "
                    "'{}' is a {}".format(name, known_kind)
                )
            return known

    def series(self, family: MetricFamily, labels: Dict[str, str], buckets: Sequence[float]) -> Series:
        """Return the series of a family that has these labels, a new one if there is none."""
        key = (family.name, tuple(sorted(labels.items())))
        with self._lock:
            series = self._series.get(key)
        if series is None:
            series = Series(family, self, labels, buckets)
            with self._lock:
                series = self._series.setdefault(key, series)
        return series

    def enrol(self) -> int:
        """Give a metric its number."""
        with self._lock:
            self._last_number += 1
            if self._wake is None:
                self._wake = threading.Event()
                threading.Thread(target=self._flush, args=(self._wake,), name="conch-metrics", daemon=True).start()
            return self._last_number

    def changed(self, number: int, sample: Callable[[], Sample], at_once: bool = True) -> None:
        """Note that a metric has a new value; `sample` returns it when it is sent.

        `at_once` is False for the garbage collector, which may run in a thread that is about to send.
        """
        self._changed[number] = sample
        now = time.monotonic()
        if at_once and now - self._sent >= _FLUSH_AFTER_S:
            self._sent = now
            with suppress(OSError):  # the server has gone
                self._send()
            return
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
    is the same one, with the first description. Its metrics are gone when the object is, and raise when they are used.
    Raises TritonModelException for another kind or a name that is not valid, TypeError for an unknown kind.
    """

    COUNTER = COUNTER
    GAUGE = GAUGE
    HISTOGRAM = HISTOGRAM

    def __init__(self, name: str, description: str, kind: str) -> None:
        self._metrics: WeakSet[Metric] = WeakSet()
        self.name = _FAMILY.text("name", name)
        if not isinstance(kind, str) or kind not in (COUNTER, GAUGE, HISTOGRAM):
            raise _FAMILY.mismatch("kind", kind)
        if not _NAME.fullmatch(self.name):
            raise TritonModelException(
                "Error when creating MetricFamily: {!r} is not a valid metric name".format(self.name)
            )
        self.kind = kind
        self._registry = current().metrics
        self.description = self._registry.declare(self.name, _FAMILY.text("description", description), kind)

    def __del__(self) -> None:
        for metric in self._metrics:
            metric._clear()

    def Metric(  # noqa: N802 - Triton's name
        self, labels: Optional[Dict[str, str]] = None, buckets: Optional[Sequence[float]] = None
    ) -> Metric:
        """Make a metric of this family, or another name for the one that has these labels already.

        `buckets`, ascending upper bounds, are for histograms and needed there. Raises TritonModelException.
        """
        if labels is not None and not isinstance(labels, dict):
            raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
        if buckets is not None and not isinstance(buckets, list):
            raise TritonModelException("Failed to create metric. Buckets must be a list.")
        if self.kind == HISTOGRAM:
            if not buckets:
                raise TritonModelException("Failed to create metric. Missing required buckets.")
            if list(buckets) != sorted(set(buckets)):
                raise TritonModelException("Failed to create metric. Buckets must ascend.")
        elif buckets is not None:
            raise TritonModelException("Failed to create metric. Unexpected buckets found.")
        for name, value in (labels or {}).items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise TritonModelException(
                    "Error when creating Metric: labels must be strings, not {!r}: {!r}".format(name, value)
                )
            if not _LABEL.fullmatch(name):
                raise TritonModelException("Error when creating Metric: {!r} is not a valid label name".format(name))
        metric = Metric(self._registry.series(self, labels or {}, buckets or ()))
        self._metrics.add(metric)
        return metric


class Series:
    """One time series, which any number of `Metric` share. It is gone from the server when the last of them is."""

    def __init__(
        self, family: MetricFamily, registry: MetricRegistry, labels: Dict[str, str], buckets: Sequence[float]
    ) -> None:
        # Not the family itself, whose end is the end of its metrics.
        self.family = (family.name, family.description, family.kind)
        self.kind = family.kind
        self.value = 0.0
        self.lock = threading.Lock()
        self._registry = registry
        self._labels = dict(labels)
        self._bounds = [float(bound) for bound in buckets]
        self._counts = [0] * (len(self._bounds) + 1)
        self._number = registry.enrol()
        self.changed()

    def __del__(self) -> None:
        number = getattr(self, "_number", None)
        if number is not None:
            self._registry.changed(number, lambda: (number,), at_once=False)

    def observe(self, value: float) -> None:
        """Count a value in its bucket."""
        with self.lock:
            self.value += value
            self._counts[bisect_left(self._bounds, value)] += 1
        self.changed()

    def changed(self) -> None:
        """Have the new value sent."""
        self._registry.changed(self._number, self._sample)

    def _sample(self) -> Sample:
        with self.lock:
            buckets = tuple(zip([*self._bounds, math.inf], accumulate(self._counts))) if self._bounds else ()
            return (self._number, *self.family, self._labels, self.value, buckets)


class Metric:
    """A metric; made by `MetricFamily.Metric`. Those of one family with equal labels are one metric.

    `value` is what this process has counted; the server shows the sum over all instances of the model.
    """

    def __init__(self, series: Series) -> None:
        self._own: Optional[Series] = series

    def increment(self, value: float) -> None:
        """Add to a counter, or to a gauge. Raises TritonModelException for a histogram or a falling counter."""
        series, value = self._series(), _number(_INCREMENT, value)
        if series.kind == HISTOGRAM:
            raise TritonModelException("Failed to increment metric value: a histogram is observed, not incremented")
        if series.kind == COUNTER and value < 0:
            raise TritonModelException(
                "Failed to increment metric value: TRITONSERVER_METRIC_KIND_COUNTER can only be incremented "
                "monotonically by non-negative values."
            )
        with series.lock:
            series.value += value
        series.changed()

    def set(self, value: float) -> None:
        """Set a gauge. Raises TritonModelException for anything else."""
        series, value = self._series(), _number(_SET, value)
        if series.kind != GAUGE:
            raise TritonModelException(
                "Failed to set metric value: only a gauge can be set, this is a {}".format(series.kind)
            )
        with series.lock:
            series.value = value
        series.changed()

    def observe(self, value: float) -> None:
        """Count a value in a histogram. Raises TritonModelException for anything else."""
        series, value = self._series(), _number(_OBSERVE, value)
        if series.kind != HISTOGRAM:
            raise TritonModelException(
                "Failed to observe metric value: only a histogram observes, this is a {}".format(series.kind)
            )
        series.observe(value)

    def value(self) -> float:
        """Return the value of a counter or gauge. Raises TritonModelException for a histogram."""
        series = self._series()
        if series.kind == HISTOGRAM:
            raise TritonModelException("Failed to get metric value: a histogram has no single value")
        return series.value

    def _series(self) -> Series:
        if self._own is None:
            raise TritonModelException(_DELETED)
        return self._own

    def _clear(self) -> None:
        self._own = None


def _number(signature: CallSignature, value: Any) -> float:
    if isinstance(value, (str, bytes)) or not (hasattr(value, "__float__") or hasattr(value, "__index__")):
        raise signature.mismatch("value", value)
    return float(value)
