"""How many processors a server's executions use, by their counters of processor time."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conch.domain.causes.parts import Interval
from conch.domain.events.log import EventLog


def processors_used(log: EventLog, intervals: Sequence[Interval]) -> float:
    """Return how many processors batches and steps of engines used on average in some intervals.

    What an execution used is spread evenly over it. 0 if no execution in them has been measured; at least, because of
    an execution with several threads only one is measured.
    """
    starts, ends = np.array(intervals, np.int64).reshape(-1, 2).T
    whole = int((ends - starts).sum())
    if not whole:
        return 0.0
    batches, steps = log.batches, log.steps
    begun = np.concatenate((batches["started"], steps["started"]))
    ended = np.concatenate((batches["infer_done"], steps["ended"]))
    cpu = np.concatenate((batches["cpu_ns"], steps["cpu_ns"]))
    known = (cpu > 0) & (begun > 0) & (ended > begun)
    begun, ended, cpu = begun[known], ended[known], cpu[known]
    rate = np.minimum(cpu / (ended - begun), 1.0)
    zero = int(starts.min())
    until = np.concatenate((starts, ends)) - zero
    used = _since(begun - zero, rate, until) - _since(ended - zero, rate, until)
    return float((used[len(starts) :] - used[: len(starts)]).sum()) / whole


def _since(times: NDArray[np.int64], rates: NDArray[np.float64], until: NDArray[np.int64]) -> NDArray[Any]:
    """Return for each end what rates that hold from their times on have come to by then."""
    order = np.argsort(times)
    sums = np.concatenate(([0.0], np.cumsum(rates[order])))
    moments = np.concatenate(([0.0], np.cumsum(rates[order] * times[order])))
    before = np.searchsorted(times[order], until)
    return sums[before] * until - moments[before]
