"""How many processors a server's executions use, by their counters of processor time."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from conch.domain.causes.parts import Interval
from conch.domain.events.log import EventLog

_MAX_INTERVALS: Final = 500


def processors_used(log: EventLog, intervals: Sequence[Interval]) -> float:
    """Return how many processors batches and steps of engines used on average in the longest of some intervals.

    What an execution used is spread evenly over it. 0 if no execution in them has been measured; at least, because of
    an execution with several threads only one is measured.
    """
    longest = sorted(intervals, key=lambda interval: interval[0] - interval[1])[:_MAX_INTERVALS]
    whole = sum(end - start for start, end in longest)
    if not whole:
        return 0.0
    batches, steps = log.batches, log.steps
    begun = np.concatenate((batches["started"], steps["started"]))
    ended = np.concatenate((batches["infer_done"], steps["ended"]))
    cpu = np.concatenate((batches["cpu_ns"], steps["cpu_ns"]))
    known = (cpu > 0) & (begun > 0) & (ended > begun)
    begun, ended, cpu = begun[known], ended[known], cpu[known]
    rate = np.minimum(cpu / np.maximum(ended - begun, 1), 1.0)
    used = 0.0
    for start, end in longest:
        overlap = np.minimum(ended, end) - np.maximum(begun, start)
        used += float((rate * np.maximum(overlap, 0)).sum())
    return used / whole
