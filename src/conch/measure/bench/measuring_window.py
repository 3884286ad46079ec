"""How long to measure: warm-up, window, and what ends them."""

import threading
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Precision:
    """Measure until the confidence interval of a percentile of latency is narrow."""

    percentile: float  # 99 for p99
    half_width_ratio: float  # 0.05 for ±5 %


@dataclass(frozen=True, slots=True)
class MeasuringWindow:
    """What one level is measured for. The first of `duration_s`, `requests` and `precision` that is met ends it.

    `max_duration_s` bounds windows by `requests` and `precision`.
    """

    duration_s: float | None = 10.0
    requests: int | None = None
    precision: Precision | None = None
    max_duration_s: float = 120.0
    warm_up_s: float | None = None
    """Fixed warm-up; None: until throughput and latency are steady, at most `max_warm_up_s`."""
    max_warm_up_s: float = 10.0
    is_load_steady: bool = True
    """False for ramps, bursts and traces, whose throughput changes by design; `warm_up_s` is fixed then."""
    grace_s: float = 5.0
    """How long to wait at the end for answers to requests in flight."""

    @property
    def max_window_s(self) -> float:
        """The longest time that the window can take."""
        if self.requests is None and self.precision is None:
            return self.duration_s or 0.0
        return min(self.duration_s or self.max_duration_s, self.max_duration_s)

    @property
    def limit_s(self) -> float:
        """The longest time that warm-up and window together can take."""
        return self.max_window_s + (self.max_warm_up_s if self.warm_up_s is None else self.warm_up_s)


class Interruption:
    """A request to stop early and report what was measured, set by a signal's handler or another thread."""

    def __init__(self) -> None:
        """Assign."""
        self._event = threading.Event()

    def request(self) -> None:
        """Ask for the end."""
        self._event.set()

    @property
    def requested(self) -> bool:
        """Whether the end was asked for."""
        return self._event.is_set()
