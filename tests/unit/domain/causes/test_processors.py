"""How many processors executions used while requests waited."""

import numpy as np
import pytest

from conch.domain.causes.processors import processors_used
from conch.domain.events.log import EventLog
from tests.support.simulated_log import MS

SECOND = 1000 * MS


def log_of(*executions: tuple[int, int, int]) -> EventLog:
    """A log of batches, and of a step for each third: (started, ended, processor time)."""
    batches = [(start, end, cpu) for number, (start, end, cpu) in enumerate(executions) if number % 3]
    return EventLog.of_rows({
        "batches": [
            {"model": "m", "started": start, "infer_done": end, "released": end, "cpu_ns": cpu}
            for start, end, cpu in batches
        ],
        "steps": [
            {"model": "m", "started": start, "ended": end, "cpu_ns": cpu} for start, end, cpu in executions[::3]
        ],
    })  # fmt: skip


def test_what_executions_used_within_waits_is_counted() -> None:
    log = log_of((SECOND, SECOND + 10 * MS, 5 * MS), (SECOND + 5 * MS, SECOND + 15 * MS, 20 * MS))
    assert processors_used(log, [(SECOND, SECOND + 5 * MS)]) == pytest.approx(0.5)
    assert processors_used(log, [(SECOND + 5 * MS, SECOND + 10 * MS)]) == pytest.approx(1.5)  # one thread uses one
    assert processors_used(log, [(SECOND, SECOND + 5 * MS), (SECOND + 5 * MS, SECOND + 20 * MS)]) == pytest.approx(0.75)
    assert processors_used(log, [(SECOND + 15 * MS, SECOND + 20 * MS)]) == pytest.approx(0, abs=1e-6)


def test_without_waits_or_measurements_nothing_is_said() -> None:
    log = log_of((SECOND, SECOND + MS, 0), (SECOND, 0, MS))
    assert processors_used(log, []) == 0
    assert processors_used(log, [(SECOND, SECOND)]) == 0
    assert processors_used(log, [(SECOND, 2 * SECOND)]) == 0


def test_many_overlapping_executions_are_those_of_a_count_one_by_one() -> None:
    random = np.random.default_rng(7)
    begun = 10**15 + random.integers(0, SECOND, 3000)
    took = random.integers(1, 20 * MS, 3000)
    cpu = random.integers(0, 25 * MS, 3000)
    executions = list(zip(begun.tolist(), (begun + took).tolist(), cpu.tolist(), strict=True))
    waits = [(10**15 + start, 10**15 + start + ns) for start, ns in random.integers(1, SECOND, (600, 2)).tolist()]
    expected = sum(
        min(used / (end - start), 1) * max(min(end, until) - max(start, since), 0)
        for start, end, used in executions
        for since, until in waits
    )
    whole = sum(until - since for since, until in waits)
    assert processors_used(log_of(*executions), waits) == pytest.approx(expected / whole, rel=1e-6)
