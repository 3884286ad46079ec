"""Figures of each second of a run, for plots."""

import math

import numpy as np
from numpy.typing import NDArray

from conch.measure.bench.statistics.selection import RequestColumns
from conch.measure.bench.statistics.token_figures import TimedTokens

MAX_SECONDS = 86_400


def per_second(
    columns: RequestColumns, end_s: float, tokens: TimedTokens | None = None, name: str = "output_tokens"
) -> dict[str, tuple[float, ...]]:
    """Return series with one value for each second from the start of the run; NaN where a second has no value.

    "throughput", "errors", "p50", "p99" (latency) are of requests that ended in the second, "in_flight" is the number
    of requests that are due and not answered at its end, `name` what arrived in it: tokens or responses.
    """
    seconds = min(math.ceil(end_s - 1e-9), MAX_SECONDS)
    done = np.clip(columns.done_s, 0, seconds).astype(np.uint32)  # those after the end are in one more bin
    due = np.clip(columns.intended_s, 0, seconds).astype(np.uint32)
    finished = np.bincount(done[columns.is_ok], minlength=seconds + 1)[:seconds]
    is_error = (columns.outcome >= 1) & (columns.outcome <= 6)
    waiting = np.cumsum(np.bincount(due, minlength=seconds + 1) - np.bincount(done, minlength=seconds + 1))[:seconds]
    p50, p99 = _percentiles(columns.latency_s[columns.is_ok], done[columns.is_ok], seconds)
    series = {
        "throughput": _floats(finished),
        "errors": _floats(np.bincount(done[is_error], minlength=seconds + 1)[:seconds]),
        "in_flight": _floats(waiting),
        "p50": p50,
        "p99": p99,
    }
    if tokens is not None:
        at = np.clip(tokens.received_s, 0, seconds).astype(np.uint32)
        series[name] = _floats(np.bincount(at, tokens.tokens, minlength=seconds + 1)[:seconds])
    return series


def _floats(values: NDArray[np.float64] | NDArray[np.int64]) -> tuple[float, ...]:
    return tuple(values.astype(np.float64).tolist())


def _percentiles(
    latency: NDArray[np.float64], second: NDArray[np.uint32], seconds: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    kind = np.uint16 if seconds < 65_535 else np.uint32  # a stable sort of short integers is a radix sort
    order = np.argsort(second.astype(kind), kind="stable")
    bounds = np.concatenate(([0], np.cumsum(np.bincount(second, minlength=seconds + 1))))
    ordered = latency[order]
    p50, p99 = [math.nan] * seconds, [math.nan] * seconds
    for index in range(seconds):
        part = ordered[bounds[index] : bounds[index + 1]]
        if len(part):
            ranks = (math.ceil(len(part) * 0.5) - 1, math.ceil(len(part) * 0.99) - 1)
            part.partition(ranks)
            p50[index], p99[index] = float(part[ranks[0]]), float(part[ranks[1]])
    return tuple(p50), tuple(p99)
