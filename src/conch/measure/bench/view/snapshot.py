"""The numbers of a moment of a run, for all views."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from conch.measure.bench.measure_level import Progress
from conch.measure.bench.records import Records, RequestOutcome

_RECENT_NS = 2_000_000_000  # rates and percentiles on the screen are of so much time
_BUCKETS = 8


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One moment. Times are seconds; percentiles are of the last seconds, None without a success in them."""

    label: str
    kind: str
    phase: str
    elapsed_s: float
    expected_s: float
    rate: float  # successful requests per second
    error_rate: float
    requests: int  # since the start
    in_flight: int
    p50: float | None
    p90: float | None
    p99: float | None
    max: float | None
    token_rate: float | None  # output tokens, or content chunks where the server counts no tokens
    first_token_p50: float | None
    response_rate: float | None  # of tensor models that stream
    first_response_p50: float | None
    histogram: tuple[tuple[float, int], ...]  # (upper edge, count)
    gauges: dict[str, float]
    last_error: str

    @property
    def left_s(self) -> float:
        """The time left, at most."""
        return max(self.expected_s - self.elapsed_s, 0.0)

    @property
    def share(self) -> float:
        """The share of the time that has passed, 0 to 1."""
        return min(self.elapsed_s / self.expected_s, 1.0) if self.expected_s > 0 else 1.0


def take_snapshot(progress: Progress) -> Snapshot:
    """Return the numbers of a moment."""
    recent = progress.log.tail(progress.now_ns - _RECENT_NS)
    seconds = min(progress.now_ns - progress.start_ns, _RECENT_NS) / 1e9 or 1e-9
    good = recent[recent["outcome"] == RequestOutcome.OK]
    cancelled = recent["outcome"] == RequestOutcome.CANCELLED  # as the plan asks: not an error
    latency = (good["done_ns"] - good["intended_ns"]) / 1e9
    p50, p90, p99 = (float(each) for each in np.percentile(latency, (50, 90, 99))) if len(good) else (None,) * 3
    streamed, first = _tokens(good) if progress.has_tokens else _responses(good)
    streamed_rate = streamed / seconds if streamed else None
    errors = progress.log.errors
    return Snapshot(
        label=progress.level.label,
        kind=progress.level.kind,
        phase=progress.phase,
        elapsed_s=(progress.now_ns - progress.start_ns) / 1e9,
        expected_s=progress.expected_s,
        rate=len(good) / seconds,
        error_rate=(len(recent) - len(good) - np.count_nonzero(cancelled)) / seconds,
        requests=progress.log.count,
        in_flight=progress.log.in_flight,
        p50=p50,
        p90=p90,
        p99=p99,
        max=float(latency.max()) if len(good) else None,
        token_rate=streamed_rate if progress.has_tokens else None,
        first_token_p50=first if progress.has_tokens else None,
        response_rate=None if progress.has_tokens else streamed_rate,
        first_response_p50=None if progress.has_tokens else first,
        histogram=_histogram(latency),
        gauges=dict(progress.gauges),
        last_error=max(errors, key=lambda message: errors[message]) if errors else "",
    )


def _tokens(good: Records) -> tuple[int, float | None]:
    """Return output tokens, and the median time to the first, of streamed answers."""
    streamed = good[good["chunks_from"] >= 0]
    if not len(streamed):
        return int(good["output_tokens"].clip(min=0).sum()), None
    counted = np.where(streamed["output_tokens"] >= 0, streamed["output_tokens"], streamed["responses"])
    first = (streamed["first_ns"] - streamed["intended_ns"]) / 1e9
    return int(counted.sum()), float(np.median(first))


def _responses(good: Records) -> tuple[int, float | None]:
    """Return responses, and the median time to the first; 0 and None if each request has one."""
    streamed = good[good["chunks_from"] >= 0]
    if np.all(streamed["responses"] == 1):
        return 0, None
    return int(streamed["responses"].sum()), float(np.median(streamed["first_ns"] - streamed["intended_ns"])) / 1e9


def _histogram(latency: NDArray[np.float64]) -> tuple[tuple[float, int], ...]:
    """Return counts in logarithmic buckets between the lowest and the highest latency."""
    if len(latency) == 0:
        return ()
    low, high = max(float(latency.min()), 1e-6), max(float(latency.max()), 2e-6)
    edges = np.geomspace(low, max(high, low * 1.1), _BUCKETS + 1)
    counts, _ = np.histogram(latency, np.concatenate(([0.0], edges[1:-1], [np.inf])))
    return tuple((float(edge), int(count)) for edge, count in zip(edges[1:], counts, strict=True))
