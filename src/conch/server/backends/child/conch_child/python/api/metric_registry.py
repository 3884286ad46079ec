"""The time series of a model's custom metrics. Their values are in shared memory; see `ipc/metric_area`."""

from __future__ import annotations

import threading
from bisect import bisect_left
from typing import Any, Dict, Sequence, Tuple
from weakref import WeakValueDictionary

from ...ipc.metric_area import MAX_SERIES, MetricArea, NoRoom

Family = Tuple[str, str, str]  # name, description, kind


class MetricRegistry:
    """The metrics of this process, in `memory`. Safe to use from any thread."""

    def __init__(self, memory: Any) -> None:
        self._memory = memory
        self._area: Any = None  # made for the first series: most models have none
        self._lock = threading.Lock()
        self._families: Dict[str, Tuple[str, str]] = {}
        self._series: WeakValueDictionary[Any, Series] = WeakValueDictionary()

    def declare(self, name: str, description: str, kind: str) -> Tuple[str, str]:
        """Declare a family and return its description and kind, which are those of the first declaration.

        Raises NoRoom.
        """
        with self._lock:
            if name not in self._families and len(self._families) >= MAX_SERIES:
                raise NoRoom("this instance has {} families already, which is the maximum".format(MAX_SERIES))
            return self._families.setdefault(name, (description, kind))

    def series(self, family: Family, labels: Dict[str, str], buckets: Sequence[float]) -> Series:
        """Return the series of a family with these labels, a new one if there is none. Raises NoRoom."""
        key = (family[0], tuple(sorted(labels.items())))
        with self._lock:
            series = self._series.get(key)
            if series is None:
                if self._area is None:
                    self._area = MetricArea(self._memory)
                series = self._series[key] = Series(family, self._area, labels, buckets)
        return series

    def disconnect(self) -> None:
        """Leave the shared memory to the process of which this one is a fork."""
        if self._area is not None:
            self._area.disconnect()
        self._lock = threading.Lock()  # it may have been held during the fork


class Series:
    """One time series, shared by any number of `Metric`. It disappears from the server with the last of them."""

    def __init__(self, family: Family, area: MetricArea, labels: Dict[str, str], buckets: Sequence[float]) -> None:
        self.kind = family[2]
        self.value = 0.0
        self._position = 0
        self._lock = threading.Lock()
        self._area = area
        self._bounds = [float(bound) for bound in buckets]
        counts = len(self._bounds) + 1 if self.kind == "histogram" else 0
        self._position = area.allocate((*family, labels, self._bounds), counts)

    def __del__(self) -> None:
        if self._position:
            self._area.release(self._position)

    def add(self, value: float) -> None:
        """Add to the value."""
        with self._lock:
            self.value += value
            self._area.set(self._position, self.value)

    def set(self, value: float) -> None:
        """Set the value."""
        with self._lock:
            self.value = value
            self._area.set(self._position, value)

    def observe(self, value: float) -> None:
        """Count a value in its bucket."""
        with self._lock:
            self.value += value
            self._area.count(self._position, bisect_left(self._bounds, value))
            self._area.set(self._position, self.value)
