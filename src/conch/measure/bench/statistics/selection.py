"""Columns of the records of a run, and which requests count towards which figure."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from conch.measure.bench.records import Records, RequestOutcome

NS = 1e-9


@dataclass(frozen=True, slots=True)
class RunWindow:
    """The run and its part that counts, in nanoseconds of CLOCK_MONOTONIC."""

    run_start_ns: int
    start_ns: int
    end_ns: int

    def __post_init__(self) -> None:
        if not self.run_start_ns <= self.start_ns < self.end_ns:
            raise ValueError(f"a window must have a length and lie within the run, got {self}")

    @property
    def seconds(self) -> tuple[float, float]:
        """Start and end in seconds from the start of the run."""
        return (self.start_ns - self.run_start_ns) * NS, (self.end_ns - self.run_start_ns) * NS

    @property
    def duration_s(self) -> float:
        """The length."""
        return (self.end_ns - self.start_ns) * NS


@dataclass(frozen=True, slots=True)
class RequestColumns:
    """Contiguous columns of all records; times are seconds from the start of the run."""

    intended_s: NDArray[np.float64]
    done_s: NDArray[np.float64]
    outcome: NDArray[np.uint8]
    is_ok: NDArray[np.bool_]
    ended: NDArray[np.bool_]
    """Ended within the window, other than by the end of the run."""
    timed: NDArray[np.bool_]
    """Successful and counting towards latency."""
    overdue: NDArray[np.bool_]
    """Unfinished, and in flight for longer than the median of `timed`: slower than seen."""
    excluded: int
    """Unfinished requests that were in flight for a shorter time, which says nothing."""

    @property
    def latency_s(self) -> NDArray[np.float64]:
        """From the intended time to the end."""
        return self.done_s - self.intended_s


def select(records: Records, window: RunWindow, *, is_open_loop: bool) -> RequestColumns:
    """Select the requests of a window.

    Rates count the requests that ended in the window. Latency is of those that ended in it in a closed loop; in an
    open loop it is of those that were to be sent in it, however late they ended, so that a stall at the end of the
    window counts in full. A request still in flight at the end of the run is at least as slow as seen: it counts with
    the time for which it was in flight if that is longer than the median of the others.
    """
    intended = (records["intended_ns"] - window.run_start_ns) * NS
    done = (records["done_ns"] - window.run_start_ns) * NS
    outcome = np.ascontiguousarray(records["outcome"])
    start, end = window.seconds
    is_ok = outcome == RequestOutcome.OK
    unfinished = outcome == RequestOutcome.UNFINISHED
    ended = (done >= start) & (done < end) & ~unfinished
    intended_within = (intended >= start) & (intended < end)
    timed = is_ok & (intended_within if is_open_loop else ended)
    candidates = unfinished & (intended < end) & (done >= start)
    if is_open_loop:
        candidates &= intended_within
    overdue, excluded = candidates, 0
    if candidates.any() and timed.any():
        middle = float(np.median(done[timed] - intended[timed]))
        overdue = candidates & (done - intended > middle)
        excluded = int(candidates.sum() - overdue.sum())
    return RequestColumns(intended, done, outcome, is_ok, ended, timed, overdue, excluded)
