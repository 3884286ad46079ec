"""What a simulation is fed with, learnt from an event log: work of batches, contention, traffic, overheads.

The work of a batch is the time that its instance would have taken alone. Executions that share processors take longer;
that is taken out of the recorded times here, and put in again by the simulation.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from conch.base.errors import ConfigError, InvalidRequest, NotFound
from conch.domain.config.document import from_document
from conch.domain.config.from_proto import to_model_config
from conch.domain.events.layout import WHY_NOW
from conch.domain.events.log import EventLog
from conch.domain.model_config import ModelConfig

Table: TypeAlias = NDArray[np.void]
Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]
Documents: TypeAlias = Mapping[str, Mapping[str, Any]]

# Executions from which 99 of 100 logs hold one of the slowest hundredth: 1 - 0.99 ** 459 = 0.99.
ENOUGH: Final = 459
_MIN_OF_A_SIZE: Final = 5  # for a usual time
_MIN_OF_A_SPREAD: Final = 100  # for a spread of times that is not shared with other sizes
_MIN_OF_A_KIND: Final = 20
_MAX_KINDS: Final = 32
_MAX_BATCH: Final = 1 << 20  # the usual time of each size is kept
_MAX_INSTANCES: Final = 4096
_MAX_CORES: Final = 4.0  # times the machine's
_TYPICAL_LATENESS_NS: Final = 60_000
_MAX_TURNAROUND: Final = 0.2  # of a latency: a client that sends within it after an answer waits for answers
_MIN_SPREAD: Final = 0.1  # in the number of executions at once, for contention to be visible


@dataclass(frozen=True)
class Executions:
    """The executions of one model. `work` is in ns; `cores` is how many processors one uses, None if unknown."""

    config: ModelConfig
    instances: int
    lanes: int  # executions at once on one instance
    sizes: Integers
    kinds: Integers
    work: Floats
    cores: float | None
    at_once: float  # executions at once, on average while there were any
    executing: float  # share of an instance's time in which the model executes; 0 if no batch is sent ahead
    lateness: Integers  # by how much timers were late, by batch
    begun: Integers
    taken: Integers  # ns, with the contention of then
    of_request: Mapping[int, int]  # index of a client's request → index of the execution


@dataclass(frozen=True)
class UsualWork:
    """The usual work by size: the median of sizes that were seen, on a line between and beyond them."""

    sizes: Integers
    medians: Floats
    by_kind: Floats
    slope: float  # beyond the largest size; a line through the origin where one size was seen

    @classmethod
    def of(cls, sizes: Integers, kinds: Integers, work: Floats) -> "UsualWork":
        """Learn from executions, of which there is at least one."""
        seen, counts = np.unique(sizes, return_counts=True)
        enough = seen[counts >= min(_MIN_OF_A_SIZE, counts.max())]
        medians = np.array([np.median(work[sizes == size]) for size in enough])
        if len(enough) > 1:
            weights = np.sqrt(counts[np.isin(seen, enough)])
            slope = max(float(np.polyfit(enough, medians, 1, w=weights)[0]), 0.0)
        else:
            slope = float(medians[0] / enough[0])
        by_kind = np.ones(int(kinds.max()) + 1)
        relative = work / np.interp(sizes, enough, medians)
        for kind in np.unique(kinds):
            by_kind[kind] = np.median(relative[kinds == kind])
        return cls(enough.astype(np.int64), medians, by_kind, slope)

    def at(self, sizes: Integers, slope_share: float = 1.0) -> Floats:
        """Return the usual work of sizes. `slope_share` weakens the growth beyond the largest size that was seen."""
        first, last = self.sizes[0], self.sizes[-1]
        known = np.interp(sizes, self.sizes, self.medians)
        above = np.maximum(sizes - last, 0) * self.slope * slope_share
        below = np.maximum(first - sizes, 0) * self.slope * slope_share
        return np.asarray(np.maximum(known + above - below, self.medians[0] * 0.05))


@dataclass(frozen=True)
class ClientRequests:
    """The requests of clients to the model, in the order in which they were queued. Times are ns."""

    numbers: Integers
    queued: Integers
    sizes: Integers
    kinds: Integers
    before: Integers  # from the first byte to the queue
    after: Integers  # from the release of the last batch to the last byte
    priorities: Integers
    keys: Integers
    ends: NDArray[np.bool_]
    tenants: NDArray[np.str_]
    latency: Integers  # 0 where there was no answer
    clients: int  # that send one after the other; 0 where requests come at their times


@dataclass(frozen=True)
class Learnt:
    """A model, the models of its steps, their requests, and what the log does not say."""

    config: ModelConfig
    models: Mapping[str, ModelConfig]
    executions: Mapping[str, Executions]
    requests: ClientRequests
    cores: float
    duration_s: float
    notes: tuple[str, ...]


def learn(log: EventLog, model: str, documents: Documents | None = None) -> Learnt:
    """Learn a model, and if it is an ensemble the models of its steps. `documents` are configurations by name.

    Raises NotFound and InvalidRequest if the log does not hold what is needed, ConfigError for an invalid document.
    """
    known = {**log.server.get("models", {}), **(documents or {})}
    config = _config(model, known)
    models = {model: config}
    due = [config]
    while due:
        for step in due.pop().ensemble_steps:
            if step.model_name not in models:
                models[step.model_name] = _config(step.model_name, known)
                due.append(models[step.model_name])
    for stage in models.values():
        if stage.decoupled:
            raise InvalidRequest(f"model '{stage.name}' is decoupled, which is not simulated")
    cores = float(log.server.get("cores") or 1)
    roots = _Roots(log, model)
    notes = list[str]()
    if log.overrun_before:
        notes.append("the log lacks older events, which newer ones have overwritten")
    executions = {
        name: _executions(log, stage, roots, cores) for name, stage in models.items() if not stage.is_ensemble
    }
    requests = _requests(log, roots)
    span = (int(requests.queued[-1]) - int(requests.queued[0])) / 1e9
    return Learnt(config, models, executions, requests, cores, span, tuple(notes))


def _config(name: str, documents: Documents) -> ModelConfig:
    if name not in documents:
        raise NotFound(
            f"the log has no configuration of model '{name}'; it knows {', '.join(sorted(documents)) or 'none'}"
        )
    try:
        return to_model_config(from_document(documents[name], f"configuration of '{name}'"))
    except ConfigError as error:
        raise InvalidRequest(f"configuration of model '{name}': {error}") from error


class _Roots:
    """The clients' requests to a model, the request behind each step, and their kinds."""

    def __init__(self, log: EventLog, model: str) -> None:
        rows = log.requests
        names = list(log.names)
        if model not in names:
            raise NotFound(f"the log has no request to model '{model}'; it has {_models(log)}")
        own = (rows["model"] == names.index(model)) & (rows["queued"] > 0)
        alone = own & (rows["parent"] == 0)
        if not alone.any():
            # A model that other models call: their calls are its traffic.
            alone = own
        self.rows: Table = rows[alone & (rows["cache_hit"] == 0)]
        self.rows = self.rows[np.argsort(self.rows["queued"], kind="stable")]
        if not len(self.rows):
            raise NotFound(f"the log has no request to model '{model}' that was executed; it has {_models(log)}")
        self.version = int(self.rows["version"].max())
        self._parents = dict(zip(rows["number"].tolist(), rows["parent"].tolist(), strict=True))
        self._index = {number: index for index, number in enumerate(self.rows["number"].tolist())}
        shapes, inverse, counts = np.unique(self.rows["shape"], return_inverse=True, return_counts=True)
        order = np.argsort(-counts, kind="stable")[: _MAX_KINDS - 1]
        numbers = np.zeros(len(shapes), np.int64)  # 0: rare ones
        for kind, index in enumerate(order, 1):
            if counts[index] >= _MIN_OF_A_KIND:
                numbers[index] = kind
        self.kinds: Integers = numbers[inverse]

    def root(self, number: int) -> int:
        """Return the index of the client's request behind a request, -1 if there is none."""
        while number and number not in self._index:
            number = self._parents.get(number, 0)
        return self._index.get(number, -1)


def _models(log: EventLog) -> str:
    names = sorted({log.names[index] for index in np.unique(log.requests["model"])})
    return ", ".join(names) or "no request at all"


def _executions(log: EventLog, config: ModelConfig, roots: _Roots, cores: float) -> Executions:
    names = list(log.names)
    index = names.index(config.name) if config.name in names else -1
    rows = log.batches
    rows = rows[(rows["model"] == index) & (rows["released"] > 0) & (rows["failed"] == 0)]
    rows = rows[np.argsort(rows["formed"], kind="stable")]
    if not len(rows):
        raise NotFound(f"the log has no execution of model '{config.name}'; let it run under load, and try again")
    members = log.requests[(log.requests["model"] == index) & (log.requests["batch"] > 0)]
    begun, lateness = _triggers(rows, members, config)
    released = np.maximum(rows["released"].astype(np.int64), begun + 1)
    first = dict[int, int]()
    by_root = dict[int, int]()
    positions = {number: position for position, number in enumerate(rows["number"].tolist())}
    for number, batch in zip(members["number"].tolist(), members["batch"].tolist(), strict=True):
        position = positions.get(batch)
        if position is not None:
            root = roots.root(number)
            first.setdefault(position, root)
            by_root[root] = position
    kinds = np.array(
        [0 if first.get(position, -1) < 0 else roots.kinds[first[position]] for position in range(len(rows))], np.int64
    )
    sizes = np.maximum(rows["size"].astype(np.int64), 1)
    configured = configured_instances(config)
    if (largest := max(int(sizes.max()), config.max_batch_size)) > _MAX_BATCH or configured > _MAX_INSTANCES:
        raise InvalidRequest(
            f"model '{config.name}' has batches of up to {largest} and {configured} instances, which is not simulated: "
            f"the limits are {_MAX_BATCH} and {_MAX_INSTANCES}"
        )
    at_once = _at_once(begun, released, begun, released)
    used = _cores_used(rows, released - begun)
    fitted = _fit_cores(sizes, kinds, begun, released, cores, at_once)
    demand = fitted if fitted is not None else used
    work = _work(begun, released, demand or 0.0, cores)
    instances = max(len(np.unique(rows["instance"])), configured)
    return Executions(
        config,
        instances,
        _lanes(rows, begun, released),
        sizes,
        kinds,
        work,
        demand,
        float(at_once.mean()),
        _executing(log, config, rows, begun),
        lateness,
        begun,
        released - begun,
        by_root,
    )


def configured_instances(config: ModelConfig) -> int:
    """Return how many instances a configuration asks for."""
    return max(sum(group.count * max(len(group.gpus), 1) for group in config.instance_groups if not group.passive), 1)


def _triggers(rows: Table, members: Table, config: ModelConfig) -> tuple[Integers, Integers]:
    """Return when executions were due to begin, and by how much the timer of each batch was late.

    A batch is due with the release of an instance, with the arrival of a request, or when its timer fires; for one that
    was sent ahead, with the end of the one before. The event loop forms it a little later. Where no timer fired, the
    lateness is a typical one.
    """
    formed, released = rows["formed"].astype(np.int64), rows["released"].astype(np.int64)
    order = np.argsort(members["batch"], kind="stable")
    batches, starts = np.unique(members["batch"][order], return_index=True)
    queued = members["queued"][order].astype(np.int64)
    at = np.minimum(np.searchsorted(batches, rows["number"]), len(batches) - 1)
    known = batches[at] == rows["number"]
    oldest = np.where(known, np.minimum.reduceat(queued, starts)[at], formed)
    arrivals = np.sort(queued)
    # Of any request: one that does not fit closes the batch.
    arrival = np.minimum(arrivals[np.maximum(np.searchsorted(arrivals, formed, side="right") - 1, 0)], formed)
    delay = config.dynamic_batching.max_queue_delay_us * 1000 if config.dynamic_batching else 0
    waited = rows["why_now"] == WHY_NOW.index("delay over")
    idle = np.isin(rows["why_now"], [WHY_NOW.index("idle"), WHY_NOW.index("single")])
    due = np.where(waited, oldest + delay, np.where(idle, oldest, arrival))
    releases = np.sort(released)
    before = np.searchsorted(releases, formed, side="right") - 1
    release = np.where(before >= 0, releases[np.maximum(before, 0)], 0)
    by_release = release >= due
    # A batch that is sent ahead waits for room.
    by_timer = waited & ~by_release & known & (rows["ahead"] == 0)
    begun = np.where(by_timer, formed, np.where(by_release, release, arrival))
    for instance in np.unique(rows["instance"]):
        own = np.flatnonzero(rows["instance"] == instance)
        previous = np.concatenate(([0], np.maximum.accumulate(released[own])[:-1]))
        begun[own] = np.where(rows["ahead"][own] > 0, np.maximum(formed[own], previous), begun[own])
    late = np.maximum(formed - due, 0)
    seen = by_timer & (before >= 0)  # the first batch may have waited for what is not in the log
    late[~by_timer] = int(np.median(late[seen])) if seen.any() else _TYPICAL_LATENESS_NS
    return begun, late


def _lanes(rows: Table, begun: Integers, released: Integers) -> int:
    """Return how many batches an instance executes at once, at most."""
    lanes = 1
    for instance in np.unique(rows["instance"]):
        own = rows["instance"] == instance
        lanes = max(lanes, int(_running(begun[own], released[own])[1].max(initial=1)))
    return lanes


def _running(begun: Integers, released: Integers) -> tuple[Integers, Integers]:
    """Return times, and how many executions run from each of them on."""
    times = np.concatenate([begun, released])
    changes = np.concatenate([np.ones(len(begun), np.int64), -np.ones(len(released), np.int64)])
    order = np.lexsort((changes, times))  # ends before begins
    return times[order], np.cumsum(changes[order])


def _integral(times: Integers, values: Floats, at: Integers) -> Floats:
    """Return the integral of a step function from its first time to the given times."""
    steps = np.diff(times) * values[:-1]
    reached = np.concatenate(([0.0], np.cumsum(steps)))
    index = np.clip(np.searchsorted(times, at, side="right") - 1, 0, len(times) - 1)
    return np.asarray(reached[index] + (at - times[index]) * values[index])


def _at_once(begun: Integers, released: Integers, since: Integers, until: Integers) -> Floats:
    times, running = _running(begun, released)
    counts = running.astype(np.float64)
    area = _integral(times, counts, until) - _integral(times, counts, since)
    return np.asarray(area / np.maximum(until - since, 1))


def _work(begun: Integers, released: Integers, demand: float, cores: float) -> Floats:
    """Return the time that each execution would have taken alone."""
    if not demand:
        return (released - begun).astype(np.float64)
    times, running = _running(begun, released)
    bound = min(demand, 1.0)
    speed = 1.0 / (1.0 - bound + bound * np.maximum(1.0, running * demand / cores))
    return np.maximum(_integral(times, speed, released) - _integral(times, speed, begun), 1.0)


def _cores_used(rows: Table, taken: Integers) -> float | None:
    """Return how many processors an execution uses, by their counters of processor time; None where those are 0."""
    counted = rows["cpu_ns"] > 0
    if counted.sum() < max(len(rows) // 2, _MIN_OF_A_SIZE):
        return None
    used, own = rows["cpu_ns"][counted], taken[counted]
    # A thread does not wait while it runs. The counter of waits begins with the end of the execution before, so that it
    # may be larger than what the execution leaves.
    own = np.maximum(own - rows["cpu_wait_ns"][counted], np.maximum(np.minimum(used, own), 1))
    return float(np.median(used / own))


def _fit_cores(
    sizes: Integers, kinds: Integers, begun: Integers, released: Integers, cores: float, at_once: Floats
) -> float | None:
    """Return how many processors an execution uses, by how its time depends on others; None where that is unseen."""
    if len(sizes) < _MIN_OF_A_SPREAD or at_once.std() < _MIN_SPREAD:
        return None
    classes = sizes * (int(kinds.max()) + 1) + kinds
    best, best_cores = np.inf, 0.0
    for demand in np.arange(0.0, _MAX_CORES * cores / max(at_once.max(), 1.0) + 1e-9, 0.125):
        spread = _spread(np.log(_work(begun, released, float(demand), cores)), classes)
        if spread < best * 0.995:  # a larger demand has to explain something
            best, best_cores = spread, float(demand)
    return best_cores


def _spread(values: Floats, classes: Integers) -> float:
    """Return the mean distance from the median of the class."""
    total = 0.0
    for number in np.unique(classes):
        own = values[classes == number]
        total += float(np.abs(own - np.median(own)).sum())
    return total / len(values)


def _executing(log: EventLog, config: ModelConfig, rows: Table, begun: Integers) -> float:
    """Return the share of an instance's time in which a Python model executes; 0 if it calls other models."""
    if config.backend != "python":
        return 0.0
    own = log.requests["number"][np.isin(log.requests["batch"], rows["number"])]
    if np.isin(log.requests["parent"], own).any():
        return 0.0
    taken = np.maximum(rows["released"] - begun, 1)
    return float(np.clip(np.median((rows["infer_done"] - rows["input_done"]) / taken), 0.01, 1.0))


def _requests(log: EventLog, roots: _Roots) -> ClientRequests:
    rows = roots.rows
    began, ended = log.call_times(rows)
    released = _last_release(log, roots)
    answered = (released > 0) & (ended > 0)
    after = np.where(answered, ended - released, 0)
    typical = int(np.median(after[answered])) if answered.any() else 0
    keys = np.where(rows["correlation"] == 0, 0, np.unique(rows["correlation"], return_inverse=True)[1] + 1)
    last_of = {key: position for position, key in enumerate(keys.tolist())}
    ends = np.array([key == 0 or last_of[key] == position for position, key in enumerate(keys.tolist())], bool)
    latency = np.where(answered, ended - began, 0)
    return ClientRequests(
        rows["number"].astype(np.int64),
        rows["queued"].astype(np.int64),
        np.maximum(rows["batch_size"].astype(np.int64), 1),
        roots.kinds,
        np.maximum(rows["queued"] - began, 0).astype(np.int64),
        np.where(answered, after, typical).astype(np.int64),
        rows["priority"].astype(np.int64),
        keys,
        ends,
        np.array(log.names)[rows["tenant"]],
        latency.astype(np.int64),
        _clients(began, ended, latency),
    )


def _last_release(log: EventLog, roots: _Roots) -> Integers:
    """Return when the last batch of each request of clients was released, also of those of its steps; 0 if never."""
    released = dict(zip(log.batches["number"].tolist(), log.batches["released"].tolist(), strict=True))
    last = np.zeros(len(roots.rows), np.int64)
    inner = log.requests[log.requests["batch"] > 0]
    for number, batch in zip(inner["number"].tolist(), inner["batch"].tolist(), strict=True):
        root = roots.root(number)
        if root >= 0:
            last[root] = max(last[root], released.get(batch, 0))
    return last


def _clients(began: Integers, ended: Integers, latency: Integers) -> int:
    """Return how many clients send one request after the other; 0 if requests come without regard to answers.

    Of N clients, each request but the first N follows an answer at once: the one before which N others are missing.
    """
    answered = latency[latency > 0]
    if len(began) < _MIN_OF_A_KIND or not len(answered):
        return 0
    starts, ends = np.sort(began), np.sort(ended[ended > 0])
    middle = slice(len(starts) // 10, len(starts) - len(starts) // 10)
    in_flight = np.arange(1, len(starts) + 1)[middle] - np.searchsorted(ends, starts[middle], side="right")
    number = round(float(np.percentile(in_flight, 95)))
    followed = np.arange(len(starts))[middle] - number
    pauses = starts[middle] - ends[np.clip(followed, 0, len(ends) - 1)]
    return number if np.percentile(np.abs(pauses), 90) < _MAX_TURNAROUND * np.median(answered) else 0
