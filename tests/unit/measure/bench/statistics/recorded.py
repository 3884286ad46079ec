"""Records made from arrays, for tests."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conch.measure.bench.measurement import Level
from conch.measure.bench.records import CHUNK, RECORD, Chunks, Records, RequestOutcome
from conch.measure.bench.statistics.selection import RunWindow
from conch.measure.bench.statistics.summary import SummarySettings

START_NS = 5_000_000_000_000
NO_CHUNKS = np.zeros(0, CHUNK)


def records_of(
    intended_s: ArrayLike, latency_s: ArrayLike, outcome: ArrayLike = RequestOutcome.OK, lag_s: ArrayLike = 0.0
) -> Records:
    """Return records of unary requests; times count from the start of the run."""
    intended = np.asarray(intended_s, dtype=np.float64)
    records = np.zeros(len(intended), RECORD)
    records["intended_ns"] = START_NS + np.rint(intended * 1e9)
    records["sent_ns"] = records["intended_ns"] + np.rint(np.asarray(lag_s) * 1e9).astype(np.int64)
    records["done_ns"] = records["intended_ns"] + np.rint(np.asarray(latency_s) * 1e9).astype(np.int64)
    records["first_ns"] = records["done_ns"]
    records["outcome"] = outcome
    for name in ("input_tokens", "output_tokens", "reasoning_tokens", "cached_tokens", "chunks_from"):
        records[name] = -1
    records["responses"] = 1
    return records


def settings_of(end_s: float, start_s: float = 0.0, *, is_open_loop: bool = True, **more: object) -> SummarySettings:
    window = RunWindow(START_NS, START_NS + round(start_s * 1e9), START_NS + round(end_s * 1e9))
    level = Level("rate", 100.0, "100/s") if is_open_loop else Level("concurrency", 10, "10")
    return SummarySettings(level, "2026-11-22T00:00:00Z", window, is_open_loop, **more)  # type: ignore[arg-type]


def stream(records: Records, row: int, chunks: list[tuple[float, int, int]], first: int) -> NDArray[np.void]:
    """Return the chunks (seconds after the intended time, tokens, characters) of a row, from index `first`."""
    received: Chunks = np.zeros(len(chunks), CHUNK)
    for index, (at, tokens, characters) in enumerate(chunks):
        received[index] = (records["intended_ns"][row] + round(at * 1e9), tokens, characters)
    records["chunks_from"][row] = first
    records["first_ns"][row] = received["received_ns"][0]
    records["responses"][row] = len(chunks)
    return received
