"""`pb_utils.MetricFamily` and `pb_utils.Metric`: custom metrics of a model."""

from __future__ import annotations

import re
from typing import Any, Dict, Optional, Sequence
from weakref import WeakSet

from .arguments import CallSignature
from .errors import TritonModelException
from .metric_registry import Series
from .session import current

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"

_DELETED = (
    "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The 'MetricFamily' object should "
    "be maintained throughout the lifespan of metric."
)

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


class MetricFamily:
    """Metrics of one name with different labels.

    `kind` is `MetricFamily.COUNTER`, `.GAUGE` or `.HISTOGRAM`. A second family of the same name must agree in kind and
    shares its series, with the first description. Its metrics are deleted with the object, and then raise when used.
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
        """Create a metric of this family. Metrics with equal labels share their value.

        `buckets`, ascending upper bounds, are required for histograms and invalid for others. Raises
        TritonModelException.
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
        metric = Metric(self._registry.series((self.name, self.description, self.kind), labels or {}, buckets or ()))
        self._metrics.add(metric)
        return metric


class Metric:
    """A metric, created by `MetricFamily.Metric`.

    `value` is that of this process; the server shows the sum over all instances of the model.
    """

    def __init__(self, series: Series) -> None:
        self._shared: Optional[Series] = series

    def increment(self, value: float) -> None:
        """Add to a counter or gauge. Raises TritonModelException for a histogram or a negative value of a counter."""
        series, value = self._series(), _number(_INCREMENT, value)
        if series.kind == HISTOGRAM:
            raise TritonModelException("Failed to increment metric value: a histogram supports only observe")
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
                "Failed to set metric value: only a gauge supports set, this is a {}".format(series.kind)
            )
        with series.lock:
            series.value = value
        series.changed()

    def observe(self, value: float) -> None:
        """Count a value in a histogram. Raises TritonModelException for anything else."""
        series, value = self._series(), _number(_OBSERVE, value)
        if series.kind != HISTOGRAM:
            raise TritonModelException(
                "Failed to observe metric value: only a histogram supports observe, this is a {}".format(series.kind)
            )
        series.observe(value)

    def value(self) -> float:
        """Return the value of a counter or gauge. Raises TritonModelException for a histogram."""
        series = self._series()
        if series.kind == HISTOGRAM:
            raise TritonModelException("Failed to get metric value: a histogram has no single value")
        return series.value

    def _series(self) -> Series:
        if self._shared is None:
            raise TritonModelException(_DELETED)
        return self._shared

    def _clear(self) -> None:
        self._shared = None


def _number(signature: CallSignature, value: Any) -> float:
    if isinstance(value, (str, bytes)) or not (hasattr(value, "__float__") or hasattr(value, "__index__")):
        raise signature.mismatch("value", value)
    return float(value)
