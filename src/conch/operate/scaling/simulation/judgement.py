"""Judge runs: which policy is best, and which flaps."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from conch.operate.scaling.autoscaler import ScalingEvent
from conch.operate.scaling.simulation.engine import SimulationRun

_TURN_WITHIN_S = 900
_FLAPPING_TURNS = 4
_FLAPPING_WINDOW_S = 3600


@dataclass(frozen=True, slots=True)
class Flapping:
    """A time in which the replicas went up and down: the most turns in an hour, and when that began."""

    turns: int
    at_s: float


def turns(events: Sequence[ScalingEvent]) -> list[ScalingEvent]:
    """Return the changes in the direction opposite to one less than 15 minutes before."""
    turns = []
    for before, event in pairwise(events):
        rose, rises = before.after > before.before, event.after > event.before
        if rose is not rises and event.at_s - before.at_s < _TURN_WITHIN_S:
            turns.append(event)
    return turns


def flapping(events: Sequence[ScalingEvent]) -> Flapping | None:
    """Return the worst hour if replicas turned at least four times in it."""
    times = [turn.at_s for turn in turns(events)]
    counts = [sum(1 for time in times if start <= time < start + _FLAPPING_WINDOW_S) for start in times]
    if not counts or max(counts) < _FLAPPING_TURNS:
        return None
    return Flapping(max(counts), times[counts.index(max(counts))])


def only_rises(run: SimulationRun) -> bool:
    """Return whether replicas rose to the maximum and stayed, though the load fell to less than half of its peak."""
    events = run.events
    if not events or any(event.after < event.before for event in events):
        return False
    rates = run.scenario.traffic.rates
    after = rates[int(events[-1].at_s) :]
    return bool(len(after) and after.min() < rates.max() / 2 and run.wanted[-1] > run.wanted[0])


def remarks(run: SimulationRun) -> list[str]:
    """Return what is wrong with a run, in words."""
    remarks = []
    worst = flapping(run.events)
    if worst is not None:
        remarks.append(
            f"flapping: {worst.turns} changes of direction in the hour from {clock(worst.at_s)}; "
            "raise scaleDown.stabilizationWindowSeconds, or smooth the metric"
        )
    if only_rises(run):
        remarks.append("only scales up: the metric never falls; scale on a rate or a ratio, not on a counter")
    if int(run.ready.min()) == 0:
        remarks.append("no replica was ready at times: requests failed")
    unread = sum(count for reason, count in run.reasons.items() if reason.startswith("FailedGet"))
    if unread:
        remarks.append(f"the metric could not be read at {unread} syncs; replicas stayed")
    return remarks


def best(runs: Sequence[SimulationRun]) -> SimulationRun:
    """Return the run with the fewest replica-hours of those that meet the objective, else with the fewest misses.

    Runs that only scale up come last, they cost the most in the end; runs that flap come after those that do not.
    """
    following = [run for run in runs if not only_rises(run)] or list(runs)
    good = [run for run in following if run.meets_objective]
    if good:
        return min(good, key=lambda run: (flapping(run.events) is not None, run.replica_hours))
    return min(following, key=lambda run: (run.miss_share, run.cost))


def clock(at_s: float) -> str:
    """Return a time of the day."""
    return f"{int(at_s // 3600):02d}:{int(at_s % 3600 // 60):02d}"
