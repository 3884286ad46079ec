"""Replays of an event log: its requests at their times, with the work that they took, in the same world or another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from conch.base.errors import ConchError
from conch.base.report.axis import seconds
from conch.domain.events.log import EventLog
from conch.measure.twin.forecast import Change, build, changes_of, traffic_of
from conch.measure.twin.learning import Documents, Executions, Integers, Learnt, UsualWork, learn
from conch.measure.twin.simulation import Work

# The simulated clock begins this long before the first request.
_LEAD_NS = 1_000_000
_MAX_SHARE = 0.8  # of a latency, to be worth a sentence
_MIN_EXECUTIONS = 20  # for a sentence


@dataclass(frozen=True, slots=True)
class ReplayedBatch:
    """The numbers of a batch's requests in the log, when it was formed and released (ns of the log), its instance."""

    model: str
    members: tuple[int, ...]
    formed: int
    released: int
    instance: int


@dataclass(frozen=True, slots=True)
class Replayed:
    """A replay. `done` is when each request was answered, by its number in the log, ns of the log."""

    batches: Sequence[ReplayedBatch]
    recorded: Sequence[tuple[int, ...]]  # the members of the batches in the log, by when those were formed
    done: Mapping[int, int]
    latency: Mapping[int, int]

    @property
    def equal(self) -> float:
        """The share of recorded batches with the same members in the replay."""
        replayed = {frozenset(batch.members) for batch in self.batches}
        return sum(frozenset(members) in replayed for members in self.recorded) / max(len(self.recorded), 1)


def simulate(
    log: EventLog,
    model: str,
    change: Change | Mapping[str, Change] = Change(),  # noqa: B008 - immutable
    *,
    documents: Documents | None = None,
    factor: float = 1.0,
) -> Replayed:
    """Replay a log, `factor` times as fast. Raises NotFound, InvalidRequest and ConfigError."""
    return _replay(learn(log, model, documents), changes_of(model, change), factor)


def counterfactual(log: EventLog, model: str, numbers: Sequence[int]) -> str | None:
    """Return by what these requests would have been faster, such as "with a second instance 3.1 ms instead of 41 ms".

    None if none of the changes that are tried helps, or if the log does not say enough. `numbers` are those of
    requests to the model.
    """
    try:
        learnt = learn(log, model)
        if len(next(iter(learnt.executions.values())).work) < _MIN_EXECUTIONS:
            return None
        base = _replay(learnt, {})
        known = [number for number in numbers if number in base.latency]
        if not known:
            return None
        before = float(np.median([base.latency[number] for number in known]))
        best, text = before * _MAX_SHARE, None
        for words, changes in _remedies(learnt):
            replayed = _replay(learnt, changes)
            after = float(np.median([replayed.latency.get(number, base.latency[number]) for number in known]))
            if after < best:
                best, text = after, f"{words} {_ms(after)} instead of {_ms(before)}"
    except ConchError:
        return None
    return text


def _remedies(learnt: Learnt) -> list[tuple[str, dict[str, Change]]]:
    """Return the changes that are tried, with the words for them."""
    remedies = list[tuple[str, dict[str, Change]]]()
    for name, executions in learnt.executions.items():
        of = f" of '{name}'" if learnt.config.is_ensemble else ""
        more = "a second instance" if executions.instances == 1 else f"{executions.instances + 1} instances"
        remedies.append((f"with {more}{of}", {name: Change(instances=executions.instances + 1)}))
        batching = executions.config.dynamic_batching
        if batching is not None and batching.max_queue_delay_us:
            remedies.append((f"without max_queue_delay_microseconds{of}", {name: Change(delay_us=0)}))
        elif batching is None and executions.config.max_batch_size > 1 and executions.config.sequence_batching is None:
            remedies.append((f"with dynamic batching{of}", {name: Change(delay_us=0)}))
    return remedies


def _replay(learnt: Learnt, changes: Mapping[str, Change], factor: float = 1.0) -> Replayed:
    requests = learnt.requests
    changed = bool(changes) or factor != 1.0
    begin = int(requests.queued[0]) - _LEAD_NS
    rows, at = _arrivals(learnt)
    traffic = traffic_of(learnt, rows, ((at - begin - _LEAD_NS) / factor).astype(np.int64) + _LEAD_NS)
    works = {name: _recorded_work(executions, rows, changed) for name, executions in learnt.executions.items()}
    cores = {name: executions.cores or 0.0 for name, executions in learnt.executions.items()} if changed else {}
    simulation = build(learnt, changes, traffic, works, cores, keep_batches=True)
    simulation.run()
    numbers = requests.numbers[rows].tolist()
    batches = [
        ReplayedBatch(
            batch.model,
            tuple(numbers[job.number] for job in batch.jobs),
            batch.formed + begin,
            batch.released + begin,
            batch.instance,
        )
        for batch in sorted(simulation.batches, key=lambda batch: batch.formed)
    ]
    done = {number: end + begin for number, end in zip(numbers, simulation.done, strict=True) if end}
    latency = {
        number: end - began
        for number, began, end in zip(numbers, simulation.began, simulation.done, strict=True)
        if end
    }
    return Replayed(batches, _recorded_members(learnt), done, latency)


def _arrivals(learnt: Learnt) -> tuple[Integers, Integers]:
    """Return the requests in their order, and when each is queued.

    The event loop forms a batch a little later than it is due, and what is queued meanwhile is in it: these requests
    are queued when it is due.
    """
    at = learnt.requests.queued.copy()
    if not learnt.config.is_ensemble:
        executions = learnt.executions[learnt.config.name]
        for request, execution in executions.of_request.items():
            if request >= 0 and executions.begun[execution] < at[request]:
                at[request] = executions.begun[execution]
    rows = np.argsort(at, kind="stable")
    return rows, at[rows]


def _recorded_work(executions: Executions, rows: Integers, changed: bool) -> Work:
    """Return the work of batches by their members, such that a batch of the same members takes the recorded time."""
    work = executions.work if changed else executions.taken.astype(np.float64)
    usual = UsualWork.of(executions.sizes, executions.kinds, work)
    relative = work / usual.at(executions.sizes)
    factors = np.ones(len(rows))
    for request, execution in executions.of_request.items():
        if request >= 0:
            factors[request] = relative[execution]
    largest = max(int(executions.sizes.max()), executions.config.max_batch_size)
    by_size = usual.at(np.arange(largest + 1))
    return Work(by_size.tolist(), [], [], factors[rows].tolist())


def _recorded_members(learnt: Learnt) -> list[tuple[int, ...]]:
    numbers = learnt.requests.numbers.tolist()
    batches = list[tuple[int, ...]]()
    for executions in learnt.executions.values():
        members: list[list[int]] = [[] for _ in executions.work]
        for request, execution in executions.of_request.items():
            if request >= 0:
                members[execution].append(numbers[request])
        batches += [tuple(sorted(batch)) for batch in members if batch]
    return batches


def _ms(nanoseconds: float) -> str:
    return seconds(nanoseconds / 1e9)
