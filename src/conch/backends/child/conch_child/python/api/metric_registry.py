"""The time series of a model's custom metrics, and which of them have changed since they were last sent.

A change is sent immediately, so that a scrape that follows shows it. Changes within a millisecond leave with the next
frame of responses, or by a thread that exists only in models with metrics. The server sums up a model's instances.
"""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_left
from contextlib import suppress
from itertools import accumulate
from typing import Any, Callable, Dict, Optional, Sequence, Tuple
from weakref import WeakValueDictionary

# Changes that follow each other more closely are sent together.
_FLUSH_INTERVAL_S = 0.001

Sample = Tuple[Any, ...]
Family = Tuple[str, str, str]  # name, description, kind


class MetricRegistry:
    """The metrics of this process. Safe to use from any thread."""

    def __init__(self, send: Callable[[], None]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._families: Dict[str, Tuple[str, str]] = {}
        self._series: WeakValueDictionary[Any, Series] = WeakValueDictionary()
        self._changed: Dict[int, Any] = {}
        self._last_number = 0
        self._sent = 0.0
        self._wake: Optional[threading.Event] = None

    def declare(self, name: str, description: str, kind: str) -> Tuple[str, str]:
        """Declare a family and return its description and kind, which are those of the first declaration."""
        with self._lock:
            return self._families.setdefault(name, (description, kind))

    def series(self, family: Family, labels: Dict[str, str], buckets: Sequence[float]) -> Series:
        """Return the series of a family with these labels, a new one if there is none."""
        key = (family[0], tuple(sorted(labels.items())))
        with self._lock:
            series = self._series.get(key)
        if series is None:
            series = Series(family, self, labels, buckets)
            with self._lock:
                series = self._series.setdefault(key, series)
        return series

    def register(self) -> int:
        """Return a number for a new series."""
        with self._lock:
            self._last_number += 1
            if self._wake is None:
                self._wake = threading.Event()
                threading.Thread(target=self._flush, args=(self._wake,), name="conch-metrics", daemon=True).start()
            return self._last_number

    def changed(self, number: int, sample: Callable[[], Sample], immediately: bool = True) -> None:
        """Record that a series has a new value; `sample` returns it when it is sent.

        `immediately` is False for the garbage collector, which may run in a thread that is about to send.
        """
        self._changed[number] = sample
        now = time.monotonic()
        if immediately and now - self._sent >= _FLUSH_INTERVAL_S:
            self._sent = now
            with suppress(OSError):  # the server has exited
                self._send()
            return
        wake = self._wake
        if wake is not None and not wake.is_set():
            wake.set()

    def take(self) -> Tuple[Sample, ...]:
        """Return the samples of all series that have changed since the last call.

        The caller must hold the channel's `writing` until they are sent, so that no newer ones overtake them.
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
            time.sleep(_FLUSH_INTERVAL_S)
            wake.clear()
            try:
                self._send()
            except OSError:
                return  # the server has exited


class Series:
    """One time series, shared by any number of `Metric`. It disappears from the server with the last of them."""

    def __init__(
        self, family: Family, registry: MetricRegistry, labels: Dict[str, str], buckets: Sequence[float]
    ) -> None:
        self.kind = family[2]
        self.value = 0.0
        self.lock = threading.Lock()
        self._family = family
        self._registry = registry
        self._labels = dict(labels)
        self._bounds = [float(bound) for bound in buckets]
        self._counts = [0] * (len(self._bounds) + 1)
        self._number = registry.register()
        self.changed()

    def __del__(self) -> None:
        number = getattr(self, "_number", None)
        if number is not None:
            self._registry.changed(number, lambda: (number,), immediately=False)

    def observe(self, value: float) -> None:
        """Count a value in its bucket."""
        with self.lock:
            self.value += value
            self._counts[bisect_left(self._bounds, value)] += 1
        self.changed()

    def changed(self) -> None:
        """Send the new value."""
        self._registry.changed(self._number, self._sample)

    def _sample(self) -> Sample:
        with self.lock:
            buckets = tuple(zip([*self._bounds, math.inf], accumulate(self._counts))) if self._bounds else ()
            return (self._number, *self._family, self._labels, self.value, buckets)
