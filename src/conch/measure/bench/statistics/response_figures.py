"""Figures of tensor models that answer a request with a stream of responses."""

import numpy as np
from numpy.typing import NDArray

from conch.measure.bench.measurement import ResponseFigures
from conch.measure.bench.records import Chunks, Records, RequestOutcome
from conch.measure.bench.statistics.selection import NS, RequestColumns, RunWindow
from conch.measure.bench.statistics.time_distribution import time_distribution
from conch.measure.bench.statistics.time_slices import rate_estimate
from conch.measure.bench.statistics.token_figures import TimedTokens, time_since_previous


def time_responses(records: Records, chunks: Chunks, rows: NDArray[np.int64], window: RunWindow) -> TimedTokens | None:
    """Return the responses of streams as tokens, one each; None if each request ended with its only response."""
    streamed = (records["outcome"] == RequestOutcome.OK) & (records["chunks_from"] >= 0)
    if not np.any(streamed & ((records["responses"] != 1) | (records["first_ns"] != records["done_ns"]))):
        return None
    received = (chunks["received_ns"] - window.run_start_ns) * NS
    return TimedTokens(rows, received, np.ones(len(rows)), time_since_previous(rows, received))


def response_figures(
    records: Records,
    columns: RequestColumns,
    window: RunWindow,
    responses: TimedTokens,
    percentiles: tuple[float, ...],
) -> ResponseFigures:
    """Describe the responses in a window and their times."""
    start, end = window.seconds
    first_s = (records["first_ns"] - window.run_start_ns) * NS
    streamed = columns.timed & (records["chunks_from"] >= 0)
    later = columns.timed[responses.request] & ~np.isnan(responses.gap_s)
    within = (responses.received_s >= start) & (responses.received_s < end)
    return ResponseFigures(
        count=int(within.sum()),
        rate=rate_estimate(responses.received_s, start, end),
        first=time_distribution(
            (first_s - columns.intended_s)[streamed], columns.done_s[streamed], (start, end), percentiles
        ),
        gap=time_distribution(responses.gap_s[later], responses.received_s[later], (start, end), percentiles),
    )
