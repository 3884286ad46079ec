# Compiled by mypyc in wheels.
"""Discrete-event simulation of models under load.

The decisions are those of the server, imported from `domain/scheduling`: queue policies, batches, batches sent ahead,
resources, sequences, steps of ensembles. What executes is replaced: the work of a batch is drawn from what was
learnt. Times are nanoseconds since the beginning.

Executions that share processors slow each other down. Each model has a virtual clock, which runs at the speed of its
executions: `speed` of 1 while there are processors for all that run. A batch ends when the virtual clock has advanced
by its work, so that a change of speed changes one rate and no batch.
"""

import heapq
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Final

from conch.base.errors import QueueFull
from conch.domain.model_config import EnsembleStep, ModelConfig
from conch.domain.scheduling.batching import BatchRules, Run, Wait, decide, needs_grouping
from conch.domain.scheduling.flow import StepSlots, startable
from conch.domain.scheduling.pipeline_depth import PipelineDepth
from conch.domain.scheduling.queue import PolicyQueue
from conch.domain.scheduling.rate_limiter import Claim, RateLimiter
from conch.domain.scheduling.sequence_slots import (
    DirectRules,
    LiveSequence,
    SequenceSlots,
    decide_direct,
    oldest_rules,
    slot_batch,
)
from conch.domain.scheduling.waiting import State, Waiting

NEVER: Final = 2**62


class SentRequests:
    """The requests of clients, by their order: lists of equal length.

    `at` is when they are queued; `before` and `after` are what a request spends outside of the model. `kinds` are
    indices of what distinguishes requests of one size, such as shapes. `keys` are those of sequences, 0 for none, and
    `ends` whether a request is the last of its sequence.
    """

    def __init__(
        self,
        at: list[int],
        sizes: list[int],
        kinds: list[int],
        before: list[int],
        after: list[int],
        priorities: list[int],
        timeouts_us: list[int],
        keys: list[int],
        ends: list[bool],
        tenants: list[str],
    ) -> None:
        self.at = at
        self.sizes = sizes
        self.kinds = kinds
        self.before = before
        self.after = after
        self.priorities = priorities
        self.timeouts_us = timeouts_us
        self.keys = keys
        self.ends = ends
        self.tenants = tenants


class Work:
    """Draws the work of batches: nanoseconds of an instance that runs at full speed.

    `by_size[n]` is the usual work of a batch of size n. It is multiplied by `by_kind` and by the next of `ratios`; or,
    where the requests were recorded, by the mean of `factors`, which are by request.
    """

    def __init__(
        self, by_size: list[float], by_kind: list[float], ratios: list[float], factors: list[float] | None = None
    ) -> None:
        self._by_size = by_size
        self._by_kind = by_kind
        self._ratios = ratios
        self._factors = factors or []
        self._drawn = 0

    def draw(self, jobs: "list[Arrived]", size: int) -> float:
        """Return the work of a batch."""
        size = min(size, len(self._by_size) - 1)
        usual = self._by_size[size]
        if self._factors:
            total = 0.0
            for job in jobs:
                total += self._factors[job.number]
            return usual * (total / len(jobs))
        self._drawn += 1
        return usual * self._by_kind[jobs[0].kind] * self._ratios[self._drawn % len(self._ratios)]


class Arrived(Waiting):
    """A request of one model: of a client, or of a step of an ensemble."""

    __slots__ = ("flow", "key", "kind", "number", "sequence", "step")

    def __init__(self, number: int, size: int, kind: int) -> None:
        super().__init__(size)
        self.number = number
        self.kind = kind
        self.key = 0
        self.flow: EnsembleProgress | None = None  # the request of an ensemble whose step this is
        self.step = 0
        self.sequence: LiveSequence[Arrived] | None = None


class EnsembleProgress:
    """A request on its way through an ensemble."""

    __slots__ = ("due", "failed", "job", "station", "tensors", "waiting")

    def __init__(self, station: "EnsembleStation", job: Arrived, steps: int, tensors: set[str]) -> None:
        self.station = station
        self.job = job
        self.tensors = tensors
        self.waiting = list(range(steps))
        self.due = steps
        self.failed = False


class Executed:
    """A batch: its members, and when it was formed, begun and released."""

    __slots__ = ("begun", "formed", "instance", "jobs", "model", "released", "size", "work")

    def __init__(self, model: str, jobs: list[Arrived], size: int, instance: int, formed: int, work: float) -> None:
        self.model = model
        self.jobs = jobs
        self.size = size
        self.instance = instance
        self.formed = formed
        self.work = work
        self.begun = 0
        self.released = 0


class Simulation:
    """Models, and the requests of clients to the first of them.

    `clients` is 0 for requests that come at their times; otherwise that number of clients sends one after the other.
    """

    def __init__(self, traffic: SentRequests, cores: float, *, clients: int = 0, keep_batches: bool = False) -> None:
        self.stations: list[Station] = []
        self.by_name: dict[str, Station] = {}
        self.traffic = traffic
        self.clients = clients
        self.cores = cores
        self.demand = 0.0  # processors that all executions would use
        self.keep_batches = keep_batches
        self.batches: list[Executed] = []
        self.began = [0] * len(traffic.sizes)  # by request: when its client sent it
        self.done = [0] * len(traffic.sizes)  # by request; 0 if it has not been answered
        self.refused = 0
        self.now = 0
        self._sent = 0
        self._coming: list[tuple[int, int]] = []  # of clients that send one after the other: time, number

    def add(self, station: "Station") -> None:
        """Add a model. The first one gets the requests."""
        self.stations.append(station)
        self.by_name[station.config.name] = station

    def run(self, until: int = NEVER) -> None:
        """Run until nothing is left to do, or to a time."""
        traffic, stations, coming = self.traffic, self.stations, self._coming
        times = traffic.at
        first = stations[0]
        single, closed = len(stations) == 1, self.clients > 0
        count = len(traffic.sizes)
        if closed:
            for number in range(min(self.clients, count)):
                coming.append((traffic.before[number], number))
            heapq.heapify(coming)
            self._sent = len(coming)
        number = 0
        while True:
            at = NEVER
            if closed and coming:
                at = coming[0][0]
            elif not closed and number < count:
                at = times[number]
            station = first
            due = first.due
            if not single:
                for other in stations:
                    if other.due < due:
                        due = other.due
                        station = other
            now = min(at, due)
            if now >= until:
                return
            self.now = now
            if due < at:
                station.advance(now)
                continue
            if closed:
                number = heapq.heappop(coming)[1]
            job = Arrived(number, traffic.sizes[number], traffic.kinds[number])
            job.key = traffic.keys[number]
            job.tenant = traffic.tenants[number]
            self.began[number] = now - traffic.before[number]
            first.submit(job, now, traffic.priorities[number], traffic.timeouts_us[number], traffic.ends[number], False)
            number += 1

    def ended(self, job: Arrived, now: int, answered: bool) -> None:
        """Record the end of a request. Where clients send one after the other, its client sends the next one."""
        flow = job.flow
        if flow is not None:
            flow.station.step_ended(flow, job.step, now, answered)
            return
        end = now + self.traffic.after[job.number]
        if answered:
            self.done[job.number] = end
        else:
            self.refused += 1
        if self.clients and self._sent < len(self.traffic.sizes):
            heapq.heappush(self._coming, (end + self.traffic.before[self._sent], self._sent))
            self._sent += 1

    def change_demand(self, change: float) -> None:
        """Change how many processors the executions would use, and with it the speed of all."""
        before = max(self.demand, self.cores)
        self.demand += change
        if max(self.demand, self.cores) != before:
            for station in self.stations:
                station.follow_demand(self.now)


class Station(ABC):
    """A model. `due` is when something happens in it without another request."""

    def __init__(self, simulation: Simulation, config: ModelConfig) -> None:
        self.simulation = simulation
        self.config = config
        self.due = NEVER

    @abstractmethod
    def submit(self, job: Arrived, now: int, priority: int, timeout_us: int, end: bool, admitted: bool) -> None:
        """Admit or refuse a request."""

    def refuses(self, now: int) -> bool:  # noqa: ARG002
        """Whether it has no room for a request."""
        return False

    def advance(self, now: int) -> None:  # noqa: B027
        """Do what is due."""

    def follow_demand(self, now: int) -> None:  # noqa: B027
        """Change the speed of what it executes."""


class InstanceStation(Station):
    """A model with instances. `cores` is how many processors one execution uses while it runs at full speed."""

    def __init__(self, simulation: Simulation, config: ModelConfig, work: Work, instances: int, cores: float) -> None:
        super().__init__(simulation, config)
        self.instances = instances
        self.busy_ns = 0
        self.executions = 0
        self.executed = 0  # sum of batch sizes
        self.limiter: RateLimiter | None = None
        self.claims: list[Claim] = []
        self._work = work
        self._cores = cores
        self._held: list[deque[Executed]] = [deque() for _ in range(instances)]
        self._idle = list(range(instances))
        self._running: list[tuple[float, int, Executed]] = []  # by the time of the virtual clock at which they end
        self._clock = 0.0  # the virtual one, at `_clock_at`
        self._clock_at = 0
        self._speed = 1.0
        self._wake = NEVER  # when to dispatch

    @abstractmethod
    def dispatch(self, now: int) -> None:
        """Run what can run now."""

    def after_release(self, batch: Executed, now: int) -> None:
        """Continue what waits for the end of a batch."""

    def limit(self, limiter: RateLimiter, needs: dict[tuple[str, int | None], int], priority: int) -> None:
        """Let each execution claim resources."""
        self.limiter = limiter
        self.claims = [Claim(needs, priority, self._woken, instance) for instance in range(self.instances)]
        limiter.register(self.claims)

    def follow_demand(self, now: int) -> None:
        self._settle(now)
        bound = min(self._cores, 1.0)
        simulation = self.simulation
        self._speed = 1.0 / (1.0 - bound + bound * max(1.0, simulation.demand / simulation.cores))
        self._set_due()

    def advance(self, now: int) -> None:
        self._settle(now)
        running = self._running
        # Half a nanosecond: times are whole, the virtual clock is not.
        if running and running[0][0] <= self._clock + 0.5:
            self._release(heapq.heappop(running)[2], now)
        elif self._wake <= now:
            self._wake = NEVER
            self.dispatch(now)
        self._set_due()

    def _woken(self) -> None:
        self.dispatch(self.simulation.now)
        self._set_due()

    def _settle(self, now: int) -> None:
        """Advance the virtual clock."""
        self._clock += (now - self._clock_at) * self._speed
        self._clock_at = now

    def _set_due(self) -> None:
        due = self._wake
        if self._running:
            left = (self._running[0][0] - self._clock) / self._speed
            end = self._clock_at + max(int(left + 0.999), 0)  # rounded up, but for errors of floating point
            if end < due:
                due = end
        self.due = due

    def _give(self, instance: int, jobs: list[Arrived], now: int) -> bool:
        """Give an instance a batch; return whether it begins at once."""
        size = 0
        for job in jobs:
            size += job.batch_size
            job.state = State.EXECUTING
        batch = Executed(self.config.name, jobs, size, instance, now, self._work.draw(jobs, size))
        held = self._held[instance]
        held.append(batch)
        if len(held) > 1:
            return False
        self._idle.remove(instance)
        self._begin(batch, now)
        return True

    def _begin(self, batch: Executed, now: int) -> None:
        batch.begun = now
        if self._cores:
            self.simulation.change_demand(self._cores)
        self._settle(now)
        heapq.heappush(self._running, (self._clock + batch.work, self.executions, batch))
        self.executions += 1

    def _release(self, batch: Executed, now: int) -> None:
        instance = batch.instance
        batch.released = now
        self.busy_ns += now - batch.begun
        self.executed += batch.size
        simulation = self.simulation
        if simulation.keep_batches:
            simulation.batches.append(batch)
        if self._cores:
            simulation.change_demand(-self._cores)
        held = self._held[instance]
        held.popleft()
        self.after_release(batch, now)
        if held:
            self._begin_ahead(held[0], now)
        else:
            self._idle.append(instance)
            if self.limiter is not None:
                self.limiter.release(self.claims[instance])
        self.dispatch(now)
        for job in batch.jobs:
            job.state = State.DONE
            simulation.ended(job, now, True)

    def _begin_ahead(self, batch: Executed, now: int) -> None:
        """Begin a batch that was sent ahead."""
        self._begin(batch, now)

    def _acquire(self, instances: Sequence[int]) -> int:
        """Return which of these instances may execute, -1 if none has its resources."""
        limiter = self.limiter
        assert limiter is not None
        claim = limiter.acquire([self.claims[instance] for instance in instances])
        if claim is None:
            return -1
        holder = claim.holder
        assert isinstance(holder, int)
        return holder


class BatchStation(InstanceStation):
    """A model with the default scheduler or the dynamic batcher.

    `lateness` is by how much timers are late, in ns. `executing` is the share of an instance's time in which the model
    executes, of a model whose instances get batches ahead; 0 for others.
    """

    def __init__(
        self,
        simulation: Simulation,
        config: ModelConfig,
        work: Work,
        instances: int,
        cores: float,
        lateness: list[int],
        executing: float,
        max_queue_size: int,
    ) -> None:
        super().__init__(simulation, config, work, instances, cores)
        self._rules = BatchRules.of(config)
        self._grouped = needs_grouping(config)
        self._queue: PolicyQueue[Arrived] = PolicyQueue(config.dynamic_batching, max_queue_size)
        self._lateness = lateness
        self._formed = 0
        self._until = 0  # what the timer waits for
        self._fires = 0
        self._executing = executing
        self._depths = [PipelineDepth() for _ in range(instances)] if executing else []

    def submit(self, job: Arrived, now: int, priority: int, timeout_us: int, end: bool, admitted: bool) -> None:  # noqa: ARG002
        job.queued = now
        if self._grouped:
            job.group_key = job.kind
        try:
            evicted = self._queue.push(job, now, priority=priority, timeout_us=timeout_us, admitted=admitted)
        except QueueFull:
            job.state = State.DONE
            self.simulation.ended(job, now, False)
            return
        if evicted is not None:
            self._reject(evicted, now)
        if self._idle or self._depths or job.expires:
            self.dispatch(now)
            self._set_due()

    def refuses(self, now: int) -> bool:
        return self._queue.refusal(now) is not None

    def dispatch(self, now: int) -> None:
        queue = self._queue
        wake = NEVER
        expiry = queue.next_expiry()
        if expiry and expiry <= now:
            for job in queue.expire(now):
                self._reject(job, now)
            expiry = queue.next_expiry()
        while len(queue):
            instance = self._free_instance(now)
            if instance < 0:
                break
            decision = decide(queue, self._rules, now)
            if not isinstance(decision, Run):
                wake = self._timer(decision)
                break
            if self.limiter is not None:
                instance = self._acquire(self._idle)
                if instance < 0:
                    break
            jobs = queue.pop(decision.number)
            self._formed += 1
            if not self._give(instance, jobs, now):
                queue.note_ahead(jobs)
        self._wake = min(wake, expiry) if expiry else wake

    def after_release(self, batch: Executed, now: int) -> None:
        if self._depths:
            self._depths[batch.instance].measured(int((now - batch.begun) * self._executing))

    def _begin_ahead(self, batch: Executed, now: int) -> None:
        for job in batch.jobs:
            self._queue.begin(job)
        self._begin(batch, now)

    def _reject(self, job: Arrived, now: int) -> None:
        """End a request that waits."""
        job.state = State.DONE
        self._queue.remove(job)
        self.simulation.ended(job, now, False)

    def _timer(self, decision: Wait) -> int:
        """Return when the timer for a decision fires."""
        if self._until != decision.until:
            self._until = decision.until
            self._fires = decision.until + self._lateness[self._formed % len(self._lateness)]
        return self._fires

    def _free_instance(self, now: int) -> int:
        if self._idle:
            return self._idle[-1]
        if self.limiter is not None or not self._depths:
            return -1
        crowded = self._rules.is_crowded(len(self._queue), self.instances, self._queue.next_expiry())
        for instance in range(self.instances):
            held = self._held[instance]
            depth = self._depths[instance].depth(now - held[0].begun, crowded=crowded)
            if self._rules.has_room(len(held), depth, crowded=crowded):
                return instance
        return -1


class SequenceStation(InstanceStation):
    """A model with the sequence batcher, direct or oldest."""

    def __init__(self, simulation: Simulation, config: ModelConfig, work: Work, instances: int, cores: float) -> None:
        super().__init__(simulation, config, work, instances, cores)
        batching = config.sequence_batching
        assert batching is not None
        self._is_oldest = batching.oldest
        self._oldest = oldest_rules(config, batching)
        self._direct = DirectRules.of(config, batching)
        largest = self._direct.slots
        slots = (batching.max_candidates or largest) if batching.oldest else largest
        self._slots: SequenceSlots[Arrived] = SequenceSlots(instances, slots, batching.max_idle_us * 1000)

    def submit(self, job: Arrived, now: int, priority: int, timeout_us: int, end: bool, admitted: bool) -> None:  # noqa: ARG002
        # Requests without a key are sequences of one request; keys of clients are positive.
        key = job.key or -1 - job.number
        sequence = self._slots.open(key) or self._slots.start(key)
        job.sequence = sequence
        job.queued = now
        expires = now + timeout_us * 1000 if timeout_us else 0
        self._slots.add(sequence, job, end=end or not job.key, expires=expires)
        self.dispatch(now)
        self._set_due()

    def dispatch(self, now: int) -> None:
        slots = self._slots
        event = slots.next_event()
        if event and event <= now:
            for sequence in [*slots.expired(now), *slots.idle(now)]:
                for job in slots.end(sequence, now):
                    job.state = State.DONE
                    self.simulation.ended(job, now, False)
        slots.fill(now)
        wake = NEVER
        for instance in range(self.instances):
            ready = slots.ready[instance]
            while ready and not self._held[instance]:
                heads = [sequence.waiting[0] for sequence in ready]
                if self._is_oldest:
                    decision: Run | Wait = decide(heads, self._oldest, now)
                else:
                    decision = decide_direct(heads, self._direct, now)
                if not isinstance(decision, Run):
                    wake = min(wake, decision.until)
                    break
                if self.limiter is not None and self._acquire([instance]) < 0:
                    break
                first = list(islice(ready, decision.number))
                chosen: list[LiveSequence[Arrived] | None] = [*first] if self._is_oldest else slot_batch(first)
                self._give(instance, [slots.take(sequence) for sequence in chosen if sequence is not None], now)
        event = slots.next_event()
        self._wake = min(wake, event) if event else wake

    def after_release(self, batch: Executed, now: int) -> None:
        for job in batch.jobs:
            assert job.sequence is not None
            self._slots.done(job.sequence, now)


class EnsembleStation(Station):
    """An ensemble of other models, without decoupled steps."""

    def __init__(self, simulation: Simulation, config: ModelConfig) -> None:
        super().__init__(simulation, config)
        self._steps: Sequence[EnsembleStep] = config.ensemble_steps
        self._inputs = frozenset([spec.name for spec in config.inputs])
        limit = config.max_inflight_requests
        self._slots = [StepSlots(limit) for _ in self._steps] if limit else []

    def submit(self, job: Arrived, now: int, priority: int, timeout_us: int, end: bool, admitted: bool) -> None:  # noqa: ARG002
        job.queued = now
        job.state = State.EXECUTING
        if not admitted and self.refuses(now):
            job.state = State.DONE
            self.simulation.ended(job, now, False)
            return
        self._advance(EnsembleProgress(self, job, len(self._steps), set(self._inputs)), priority)

    def refuses(self, now: int) -> bool:
        return any(self.simulation.by_name[step.model_name].refuses(now) for step in self._steps)

    def step_ended(self, flow: EnsembleProgress, step: int, now: int, answered: bool) -> None:
        """Start what follows a step; end the request with its last one, or with one that is refused."""
        if self._slots:
            self._slots[step].give_back()
        flow.due -= 1
        if flow.failed:
            return
        if not answered or flow.due == 0:
            flow.failed = not answered
            flow.job.state = State.DONE
            self.simulation.ended(flow.job, now, answered)
            return
        flow.tensors.update(self._steps[step].output_map.values())
        self._advance(flow, 0)

    def _advance(self, flow: EnsembleProgress, priority: int) -> None:
        numbers = startable(self._steps, flow.waiting, flow.tensors)
        flow.waiting = [number for number in flow.waiting if number not in numbers]
        for number in numbers:
            start = _Start(self, flow, number, priority)
            if self._slots:
                self._slots[number].take(flow, start.run)
            else:
                start.run()

    def start(self, flow: EnsembleProgress, number: int, priority: int) -> None:
        """Send the request of a step."""
        client = flow.job
        job = Arrived(client.number, client.batch_size, client.kind)
        job.flow, job.step, job.key, job.tenant = flow, number, client.key, client.tenant
        end = self.simulation.traffic.ends[client.number]
        station = self.simulation.by_name[self._steps[number].model_name]
        station.submit(job, self.simulation.now, priority, 0, end, True)


class _Start:
    """Starts a step of a request; a method rather than a function within one (mypyc)."""

    __slots__ = ("_ensemble", "_flow", "_number", "_priority")

    def __init__(self, ensemble: EnsembleStation, flow: EnsembleProgress, number: int, priority: int) -> None:
        self._ensemble = ensemble
        self._flow = flow
        self._number = number
        self._priority = priority

    def run(self) -> None:
        """Send the request of the step."""
        self._ensemble.start(self._flow, self._number, self._priority)
