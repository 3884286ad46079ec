"""Where a run becomes steady: neither throughput nor latency changes any more.

Throughput and the mean logarithm of latency are computed for short intervals. While tests find a change of either
or a trend that is also large enough to matter, the part before it is cut off: up to the change, or a fifth or a tenth
of the intervals. What remains is steady if it is long enough.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from conch.measure.bench.records import Records, RequestOutcome
from conch.measure.bench.statistics.change_point import CRITICAL_CHANGE, find_change, head_statistic, trend_statistic
from conch.measure.bench.statistics.selection import NS

MAX_INTERVALS = 60
MIN_INTERVALS = 10
_MIN_REQUESTS_PER_INTERVAL = 4
_MIN_CHANGE = 0.05  # of throughput or latency: smaller ones do not matter
_MIN_STEADY_SHARE = 0.4  # of the intervals
_MIN_TIME_S = 1.0


@dataclass(frozen=True, slots=True)
class Steadiness:
    """Since when a time is steady; None: it is not. Trends are changes over all of it: 0.1 is 10 %."""

    since_s: float | None
    throughput_trend: float
    latency_trend: float

    @property
    def trend_text(self) -> str:
        """The trend in words and numbers."""
        return (
            f"throughput changes by {100 * self.throughput_trend:+,.0f} % "
            f"and latency by {100 * self.latency_trend:+,.0f} % over it"
        )


def steady_since(records: Records, start_ns: int, now_ns: int) -> int | None:
    """Return the time since which a run is steady, None if it is not yet, or if too few requests ended to say."""
    done, latency = _finished(records, start_ns)
    steady = steadiness(done, latency, (0.0, (now_ns - start_ns) * NS))
    return None if steady is None or steady.since_s is None else start_ns + round(steady.since_s / NS)


def steadiness(
    done_s: NDArray[np.float64], latency_s: NDArray[np.float64], span: tuple[float, float]
) -> Steadiness | None:
    """Return from when to the end of a span successful requests were steady; None if they are too few to say."""
    start, end = span
    inside = (done_s >= start) & (done_s < end)
    count = min(int(inside.sum()) // _MIN_REQUESTS_PER_INTERVAL, MAX_INTERVALS)
    if count < MIN_INTERVALS or end - start < _MIN_TIME_S:
        return None
    width = (end - start) / count
    index = np.minimum(((done_s[inside] - start) / width).astype(np.int64), count - 1)
    ended = np.bincount(index, minlength=count).astype(np.float64)
    logs = np.bincount(index, np.log(np.maximum(latency_s[inside], NS)), minlength=count).astype(np.float64)
    latency = _filled(logs, ended)
    begin, trends = 0, _trends(ended, latency)
    while (change := _later_change(ended[begin:], latency[begin:])) is not None:
        begin += change
        if count - begin < max(MIN_INTERVALS, _MIN_STEADY_SHARE * count):
            return Steadiness(None, *trends)
    return Steadiness(start + begin * width, *trends)


def _finished(records: Records, start_ns: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    good = records[records["outcome"] == RequestOutcome.OK]
    return (good["done_ns"] - start_ns) * NS, (good["done_ns"] - good["intended_ns"]) * NS


def _filled(logs: NDArray[np.float64], ended: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return means; an interval without a request takes the mean between its neighbours."""
    known = ended > 0
    return np.interp(np.arange(len(logs)), np.flatnonzero(known), logs[known] / ended[known])


def _later_change(ended: NDArray[np.float64], latency: NDArray[np.float64]) -> int | None:
    """Return how many intervals to cut off: up to the later change of the two series; None if there is none."""
    relative = ended / max(float(ended.mean()), 1e-12)
    return max((cut for values in (relative, latency) if (cut := _cut(values)) is not None), default=None)


def _cut(series: NDArray[np.float64]) -> int | None:
    change = find_change(series)
    if change is not None and change.statistic > CRITICAL_CHANGE and abs(change.after - change.before) > _MIN_CHANGE:
        return change.index
    if abs(trend_statistic(series)) > 1:
        fifth = max(len(series) // 5, 1)
        if abs(float(series[-fifth:].mean() - series[:fifth].mean())) > _MIN_CHANGE:
            return fifth
    tenth = max(len(series) // 10, 2)
    if abs(head_statistic(series)) > 1 and abs(float(series[:tenth].mean() - series.mean())) > _MIN_CHANGE:
        return tenth
    return None


def _trends(ended: NDArray[np.float64], latency: NDArray[np.float64]) -> tuple[float, float]:
    """Return the changes of the least-squares lines from start to end, relative to the mean and to the start."""
    at = (np.arange(len(ended)) - (len(ended) - 1) / 2) / len(ended)
    norm = float(np.square(at).sum())
    throughput = float((at * ended).sum()) / norm / max(float(ended.mean()), 1e-12)
    return throughput, float(np.expm1((at * latency).sum() / norm))
