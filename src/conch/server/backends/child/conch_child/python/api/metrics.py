"""`pb_utils.MetricFamily` and `pb_utils.Metric`: custom metrics of a model."""

from __future__ import annotations

import re
from typing import Any, Dict, Optional, Sequence, Set
from weakref import WeakSet

from ...ipc.metric_area import NoRoom
from .arguments import CallSignature
from .errors import TritonModelException
from .metric_registry import Series
from .session import current, failure

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
    shares its series, with the first description. Its metrics keep their values until the object is deleted, and then
    raise when used. Raises TritonModelException for another kind or a name that is not valid, TypeError for an unknown
    kind.
    """

    COUNTER = COUNTER
    GAUGE = GAUGE
    HISTOGRAM = HISTOGRAM

    def __init__(self, name: str, description: str, kind: str) -> None:
        self._metrics: WeakSet[Metric] = WeakSet()
        self._kept: Set[Series] = set()  # a metric that is created for one request keeps its value for the next
        self.name = _FAMILY.text("name", name)
        if not isinstance(kind, str) or kind not in (COUNTER, GAUGE, HISTOGRAM):
            raise _FAMILY.mismatch("kind", kind)
        if not _NAME.fullmatch(self.name):
            raise failure("Error when creating MetricFamily", "Invalid metric name {!r}".format(self.name))
        self.kind = kind
        self._registry = current().metrics
        description = _FAMILY.text("description", description)
        try:
            self.description, declared = self._registry.declare(self.name, description, kind)
        except NoRoom as error:
            raise failure("Error when creating MetricFamily", str(error)) from None
        if declared != kind:
            text = "Family name already exists with different type: '{}' is a {}".format(self.name, declared)
            raise failure("Error when creating MetricFamily", text)

    def __del__(self) -> None:
        for metric in self._metrics:
            metric._clear()

    def Metric(  # noqa: N802 - Triton's name
        self, labels: Optional[Dict[Any, Any]] = None, buckets: Optional[Sequence[float]] = None
    ) -> Metric:
        """Create a metric of this family. Metrics with equal labels share their value.

        `buckets`, ascending upper bounds, are required for histograms and invalid for others. Raises
        TritonModelException, also if the process has too many series.
        """
        if labels is not None and not isinstance(labels, dict):
            raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
        if buckets is not None and not isinstance(buckets, list):
            raise TritonModelException("Failed to create metric. Buckets must be a list.")
        if self.kind == HISTOGRAM:
            if buckets is None:
                raise TritonModelException("Failed to create metric. Missing required buckets.")
            if list(buckets) != sorted(set(buckets)):
                raise TritonModelException("Failed to create metric. Buckets must ascend.")
        elif buckets is not None:
            raise TritonModelException("Failed to create metric. Unexpected buckets found.")
        for name, value in (labels or {}).items():
            if not isinstance(value, str):
                text = "attempt to access JSON non-string as string: label {!r} is {!r}".format(name, value)
                raise failure("Error when creating Metric", text)
            if not isinstance(name, str) or not _LABEL.fullmatch(name):
                raise failure("Error when creating Metric", "Invalid label name {!r}".format(name))
        try:
            series = self._registry.series((self.name, self.description, self.kind), labels or {}, buckets or ())
        except NoRoom as error:
            raise failure("Error when creating Metric", str(error)) from None
        metric = Metric(series)
        self._metrics.add(metric)
        self._kept.add(series)
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
            raise _unsupported("increment", "Increment", series.kind)
        if series.kind == COUNTER and value < 0:
            text = "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values."
            raise failure("Failed to increment metric value", text)
        series.add(value)

    def set(self, value: float) -> None:
        """Set a gauge. Raises TritonModelException for anything else."""
        series, value = self._series(), _number(_SET, value)
        if series.kind != GAUGE:
            raise _unsupported("set", "Set", series.kind)
        series.set(value)

    def observe(self, value: float) -> None:
        """Count a value in a histogram. Raises TritonModelException for anything else."""
        series, value = self._series(), _number(_OBSERVE, value)
        if series.kind != HISTOGRAM:
            raise _unsupported("observe", "Observe", series.kind)
        series.observe(value)

    def value(self) -> float:
        """Return the value of a counter or gauge. Raises TritonModelException for a histogram."""
        series = self._series()
        if series.kind == HISTOGRAM:
            raise _unsupported("get", "Value", series.kind)
        return series.value

    def _series(self) -> Series:
        if self._shared is None:
            raise TritonModelException(_DELETED)
        return self._shared

    def _clear(self) -> None:
        self._shared = None


def _unsupported(verb: str, operation: str, kind: str) -> TritonModelException:
    text = "TRITONSERVER_METRIC_KIND_{} does not support {}".format(kind.upper(), operation)
    return failure("Failed to {} metric value".format(verb), text)


def _number(signature: CallSignature, value: Any) -> float:
    if isinstance(value, (str, bytes)) or not (hasattr(value, "__float__") or hasattr(value, "__index__")):
        raise signature.mismatch("value", value)
    try:
        return float(value)
    except OverflowError:
        raise signature.mismatch("value", value) from None
