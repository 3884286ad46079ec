# Compiled by mypyc in wheels.
"""A model version that instances execute: starts the instances, gives them batches, counts results.

Subclasses implement the scheduler, which decides what waits and what runs next: `BatchingModel` and `SequenceModel`.
Everything here runs on the event loop, so there are no locks.
"""

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from logging import getLogger
from time import monotonic_ns
from typing import Final

from conch.base.errors import ConchError, Unavailable
from conch.domain.events.rows import BatchRow, Row
from conch.domain.model_config import ModelConfig
from conch.domain.request import InferRequest, InferResponse, Room
from conch.domain.scheduling.estimate import ServiceTimes
from conch.domain.scheduling.waiting import State
from conch.domain.statistics.model_statistics import ModelState
from conch.server.backends.base import Instance, Worker
from conch.server.backends.batch import Batch, Execution
from conch.server.core.pending import Pending
from conch.server.core.scheduling.model_limiter import ModelLimiter
from conch.server.core.scheduling.timer import Timer
from conch.server.core.scheduling.warmup import warm_up
from conch.server.core.served_model import ServedModel
from conch.server.core.validation import RequestValidator, Reshaper

_log: Final = getLogger(__name__)

# How long requests wait when no instance is ready: long enough for a fast restart.
_NOT_READY_TIMEOUT_S: Final = 5.0
# Retry-After: how long an instance usually takes to restart.
_RETRY_AFTER_S: Final = 1.0
# Instances of a version that start at the same time.
_MAX_STARTS: Final = 32


class ScheduledModel(ServedModel):
    """Instances, the batches that they hold, and statistics. A subclass decides what is executed."""

    def __init__(
        self,
        config: ModelConfig,
        version: int,
        labels: Mapping[str, Sequence[str]],
        instances: Sequence[Instance],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(config, version, labels)
        self.instances = instances
        self.limiter: ModelLimiter | None = None  # set by the builder where the server has one
        self.on_warm_up: Callable[[], None] = lambda: None  # set by the builder; an instance begins its warm-up
        self._loop = loop
        self._validator = RequestValidator(config)
        self._reshaper = Reshaper(config)
        self._takes_sources = all(instance.takes_sources for instance in instances)
        self._service_times = ServiceTimes()
        self._timer = Timer(loop, self._dispatch)
        # Batches that each instance has not released: the one being executed, then those sent ahead.
        self._held: dict[Instance, deque[Batch]] = {instance: deque() for instance in instances}
        self._idle: list[Instance] = []  # ready, and can begin a batch; the last one first
        # Time in which instances hold batches: at any time it is `_busy_ns` and the time of now for each busy instance.
        self._busy_ns = 0
        self._busy = 0
        self._dispatching = False  # whether `_dispatch` is scheduled in this turn of the loop
        self._not_ready_timer: asyncio.TimerHandle | None = None
        self._retiring: dict[Instance, asyncio.Event] = {}  # removed instances, and whether they are idle
        self._retirements: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        held = sum(map(len, self._held.values()))
        waiting = self.statistics.pending
        return f"<{type(self).__name__} {self.config.name}/{self.version} {waiting} waiting, {held} held>"

    @property
    def takes_sources(self) -> bool:
        """Whether its instances fetch inputs themselves, and no cache key needs them before."""
        return self._takes_sources and self.cache is None

    @property
    def workers(self) -> Sequence[Worker]:
        return self.instances

    @property
    def input_room(self) -> Room | None:
        # Which of several instances will execute a request is not known before.
        return self.instances[0].input_room if len(self.instances) == 1 else None

    # ── implemented by a scheduler ──

    @abstractmethod
    def _dispatch(self) -> None:
        """Run what can run now, and set the timer for the rest."""

    @abstractmethod
    def _waiting(self) -> Iterable[Pending]:
        """Return the requests that no instance holds."""

    @abstractmethod
    def _remove(self, pending: Pending) -> None:
        """Remove a request that has ended while it waited."""

    @abstractmethod
    def _requeue(self, pending: Pending) -> None:
        """Queue a request that an instance has not begun, in front of all others."""

    @abstractmethod
    def _after_release(self, batch: Batch) -> None:
        """Dispatch again after an instance has released a batch."""

    # ── common to all schedulers ──

    @property
    def ready(self) -> bool:
        """Whether an instance can execute. A model all of whose processes are dead is not ready."""
        return any(instance.ready for instance in self.instances)

    def state(self) -> ModelState:
        queued, oldest_ns = self._queue_state()
        instances = self.instances
        return ModelState(
            self.ready,
            len(instances),
            queued,
            oldest_ns,
            self._busy_ns + self._busy * monotonic_ns(),
            sum([instance.restarts for instance in instances]),
            tuple([(instance.plan.name, instance.pid) for instance in instances if instance.pid]),
            sum([instance.ready for instance in instances]),
        )

    def _queue_state(self) -> tuple[int, int]:
        """Return how many requests wait, and when the oldest was queued (monotonic ns)."""
        queued = [pending.queued for pending in self._waiting()]
        return len(queued), min(queued, default=0)

    async def check_ready(self) -> bool:
        ready = [instance for instance in self.instances if instance.ready]
        return bool(ready) and all(await asyncio.gather(*(instance.check_ready() for instance in ready)))

    async def start(self) -> None:
        """Start all instances, many at a time. Raises ConchError, OSError; then nothing is left running."""
        started = monotonic_ns()
        if self.limiter is not None:
            self.limiter.open(self._dispatch, self.events)
        self._timer.start()
        for instance in self.instances:
            self._own(instance)
        try:
            failure = await _start_instances(self.instances, self.on_warm_up)
        except asyncio.CancelledError:  # the server stops
            for instance in self.instances:
                instance.abandon()
            raise
        if failure is not None:
            await self.stop()
            raise failure
        self._idle = [instance for instance in self.instances if instance.ready]
        self.log_workers()
        self.statistics.load_duration_s = (monotonic_ns() - started) / 1e9

    def _own(self, instance: Instance) -> None:
        """Prepare an instance for its start."""
        instance.on_ready_change = self._ready_changed

    @property
    def can_rearrange(self) -> bool:
        """Whether `rearrange` works: only for instances that share nothing but the queue."""
        return False

    async def rearrange(self, config: ModelConfig, instances: Sequence[Instance]) -> None:
        """Replace the instances. `config` may differ from the current one in its instance groups only.

        New instances are started first; removed ones finish their batches and are stopped.
        Raises ConchError, OSError; then nothing has changed.
        """
        new = [instance for instance in instances if instance not in self._held]
        for instance in new:
            self._own(instance)
        failure = await _start_instances(new, self.on_warm_up)
        if failure is not None:
            await asyncio.gather(*(instance.stop() for instance in new))
            raise failure
        removed = [instance for instance in self.instances if instance not in instances]
        self.config, self.instances = config, instances
        self._held |= {instance: deque() for instance in new}
        for instance in removed:
            idle = self._retiring[instance] = asyncio.Event()
            if not self._held[instance]:
                idle.set()
            task = self._loop.create_task(self._retire(instance, idle))
            self._retirements.add(task)
            task.add_done_callback(self._retirements.discard)
        self._ready_changed()

    async def _retire(self, instance: Instance, idle: asyncio.Event) -> None:
        await idle.wait()
        await instance.stop()
        del self._held[instance], self._retiring[instance]

    def _prepare(self, request: InferRequest) -> None:
        """Validate a request, apply reshapes and fetch its data. Raises InvalidRequest, Unavailable."""
        self._validator.check(request)
        if not self._idle and self._not_ready_timer is None and not self.ready:
            refusal = Unavailable(self._not_ready_text(), retry_after_s=_RETRY_AFTER_S)
            self.events.refused(request.timeline, refusal, monotonic_ns())
            raise refusal
        if self._reshaper.needed:
            self._reshaper.request(request)
        if request.destinations is not None and (self.cache is not None or self.config.decoupled):
            # A client must not change what is cached, and one response must not overwrite another.
            request.destinations = None
        if not self._takes_sources:
            request.fetch_inputs()

    def settled(self, pending: Pending, answer: InferResponse | ConchError | None, previous: State) -> None:
        """Count a request that has ended. Called once per admitted request, by the request itself."""
        self.leave()
        if previous is State.QUEUED:
            self.statistics.pending -= 1
            self._remove(pending)
        timeline = pending.request.timeline
        batch = pending.batch
        if batch is not None:
            if not batch.begun:
                self._begin(pending)
            timeline.started = batch.started
            timeline.input_done = batch.input_done or batch.started
            # An answer that was sent before or after the end of the execution has its own time.
            timeline.infer_done = max(timeline.infer_done or batch.infer_done or timeline.done, timeline.input_done)
            if pending.request.span is not None:
                pending.request.span.executed(len(batch.executions))
        if isinstance(answer, InferResponse) and self._reshaper.needed:
            self._reshaper.response(answer)
        error = answer if isinstance(answer, ConchError) else pending.failure
        if error is not None:
            self.count_failure(timeline.done - timeline.received, error)
        else:
            self._count_success(pending)
        if self.statistics.declared is not None:
            self.statistics.declared.end(pending.request, answer, pending.failure, pending.first_response)
        # Breaks the cycle of batch and request, so that large tensors are freed with the last response.
        pending.batch = None

    async def stop(self) -> None:
        """Stop all instances; requests that are still unanswered fail with UNAVAILABLE."""
        self._fail_waiting(Unavailable(f"model '{self.config.name}' is being unloaded"))
        self._timer.close()
        if self._not_ready_timer is not None:
            self._not_ready_timer.cancel()
        await asyncio.gather(*(instance.stop() for instance in self._held), return_exceptions=True)
        for idle in self._retiring.values():
            idle.set()
        await asyncio.gather(*self._retirements, return_exceptions=True)
        self._idle.clear()
        if self.limiter is not None:
            self.limiter.close()

    async def kill(self) -> None:
        await asyncio.gather(*(instance.kill() for instance in self._held))

    def _dispatch_soon(self) -> None:
        """Dispatch at the end of this turn of the loop, with the requests that arrive until then.

        Requests are dispatched one by one only while an instance is idle.
        """
        if not self._dispatching:
            self._dispatching = True
            self._loop.call_soon(self._dispatch)

    def _run(
        self, instance: Instance, requests: Sequence[Pending], why: str, executions: Sequence[Execution] | None = None
    ) -> None:
        """Give an instance requests to execute together, or `executions` that include them."""
        held = self._held[instance]
        batch = Batch(
            executions or requests, partial(self._on_release, instance), partial(self._on_give_back, instance)
        )
        begins = instance in self._idle
        if begins:
            self._idle.remove(instance)
            self.statistics.pending -= len(requests)
            batch.waiting = self.statistics.pending
        else:
            batch.begun = False
            batch.ahead = True
            batch.waiting = self.statistics.pending - len(requests)
            self._note_ahead(requests)
        if not held:
            self._busy += 1
            self._busy_ns -= batch.started
        held.append(batch)
        batch.why_now = why
        batch.number = self.events.recorder.number()
        for pending in requests:
            pending.state = State.EXECUTING
            pending.batch = batch
            pending.batch_number = batch.number
        instance.execute(batch)
        if begins and instance.takes(len(held)):
            self._idle.insert(0, instance)  # behind those without a batch

    def _on_release(self, instance: Instance, batch: Batch) -> None:
        now = monotonic_ns()
        size = batch.size()
        if batch.infer_done:
            self.statistics.count_execution(size, batch.started, batch.input_done, batch.infer_done, now)
        if self.events.on:
            recorder = self.events.recorder
            self._fill(recorder.batch, instance, batch, size, now)
            recorder.add_batch()
        self._drop_batch(instance, batch)
        self._after_release(batch)

    def _on_give_back(self, instance: Instance, batch: Batch) -> None:
        """Requeue the requests of a batch that was not begun."""
        self._drop_batch(instance, batch)
        for execution in reversed(batch.executions):
            assert isinstance(execution, Pending)
            if execution.state is State.EXECUTING:
                if not batch.begun:
                    self._begin(execution)
                execution.state = State.QUEUED
                execution.batch = None
                execution.batch_number = 0
                self.statistics.pending += 1
                self._requeue(execution)
        self._dispatch()

    def _fill(self, row: BatchRow, instance: Instance, batch: Batch, size: int, released: int) -> None:
        """Fill the event log's row of a batch of `size` inferences."""
        row.number = batch.number
        row.model, row.version = self.events.model, self.events.version
        row.instance = instance.plan.name
        row.why_now = batch.why_now
        row.ahead = int(batch.ahead)
        row.failed = int(released and not batch.infer_done)
        row.members, row.size, row.waiting = len(batch.executions), size, batch.waiting
        row.formed = batch.formed
        row.started = batch.started if batch.begun else 0
        row.input_done, row.infer_done, row.released = batch.input_done, batch.infer_done, released
        row.cpu_ns, row.cpu_wait_ns, row.switches = batch.cpu_ns, batch.cpu_wait_ns, batch.switches

    def unfinished(self) -> Iterable[tuple[str, Row]]:
        rows: list[tuple[str, Row]] = [
            ("requests", self.events.unfinished(pending.request)) for pending in self._waiting()
        ]
        if self.limiter is not None:
            rows += self.limiter.unfinished()
        for instance, held in self._held.items():
            for batch in held:
                execution_row = BatchRow()
                self._fill(execution_row, instance, batch, batch.size(), 0)
                rows.append(("batches", execution_row))
                for execution in batch.executions:
                    if isinstance(execution, Pending) and execution.state is State.EXECUTING:
                        request = self.events.unfinished(execution.request, batch.number)
                        request.started = execution_row.started
                        request.input_done, request.infer_done = batch.input_done, batch.infer_done
                        rows.append(("requests", request))
        return rows

    def _note_ahead(self, requests: Sequence[Pending]) -> None:
        """Count requests that an instance is given while it executes others: they still count as pending."""

    def _begin(self, pending: Pending) -> None:  # noqa: ARG002
        """Record that the execution of a request which was sent ahead has begun."""
        self.statistics.pending -= 1

    def _drop_batch(self, instance: Instance, batch: Batch) -> None:
        held = self._held[instance]
        held.remove(batch)
        if held:
            following = held[0]
            if not following.begun:
                following.begun = True
                for execution in following.executions:
                    assert isinstance(execution, Pending)
                    if execution.state is State.EXECUTING:
                        self._begin(execution)
        else:
            self._busy -= 1
            self._busy_ns += monotonic_ns()
        if self._retiring and instance in self._retiring:
            if not held:
                self._retiring[instance].set()
        elif instance.ready and instance.takes(len(held)) and instance not in self._idle:
            self._idle.append(instance)
        if self.limiter is not None and not held:
            self.limiter.release(instance)

    def _ready_changed(self) -> None:
        """Follow an instance that died or recovered."""
        self.log_workers()
        ready = [instance for instance in self.instances if instance.ready]
        self._idle = [instance for instance in ready if instance.takes(len(self._held[instance]))]
        if self.ready:
            if self._not_ready_timer is not None:
                self._not_ready_timer.cancel()
                self._not_ready_timer = None
            self._dispatch()
        elif self._not_ready_timer is None:
            self._not_ready_timer = self._loop.call_later(_NOT_READY_TIMEOUT_S, self._fail_not_ready)

    def _fail_not_ready(self) -> None:
        self._not_ready_timer = None
        self._fail_waiting(Unavailable(self._not_ready_text(), retry_after_s=_RETRY_AFTER_S))

    def _not_ready_text(self) -> str:
        return (
            f"model '{self.config.name}' version {self.version} is not ready: "
            "none of its instances is healthy; they are being restarted"
        )

    def _fail_waiting(self, error: ConchError) -> None:
        for pending in list(self._waiting()):
            pending.finish(error)

    def _count_success(self, pending: Pending) -> None:
        request = pending.request
        timeline = request.timeline
        done = timeline.done
        self.statistics.count_success(
            request.batch_size,
            total=done - timeline.received,
            queue=timeline.started - timeline.queued,
            compute_input=timeline.input_done - timeline.started,
            compute_infer=timeline.infer_done - timeline.input_done,
            compute_output=done - timeline.infer_done,
            span=request.span,
        )
        if timeline.deadline:
            late = done > timeline.deadline
            self.statistics.deadline_misses["late"] += late
            if not late or done - timeline.started <= timeline.deadline - timeline.received:
                self._service_times.ended(late=late)  # others would have been late whenever they began
        if self.statistics.first_response is not None:
            self.statistics.first_response.add((pending.first_response or done) - timeline.received)


async def _start_instances(instances: Sequence[Instance], on_warm_up: Callable[[], None]) -> BaseException | None:
    """Start instances, and return the first failure, after which the other starts are cancelled."""
    if not instances:
        return None
    room = asyncio.Semaphore(_MAX_STARTS)
    starts = [asyncio.ensure_future(_start_instance(instance, room, on_warm_up)) for instance in instances]
    try:
        await asyncio.wait(starts, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for start in starts:
            start.cancel()
    results = await asyncio.gather(*starts, return_exceptions=True)
    failures = [result for result in results if isinstance(result, BaseException)]
    return next((failure for failure in failures if not isinstance(failure, asyncio.CancelledError)), None)


async def _start_instance(instance: Instance, room: asyncio.Semaphore, on_warm_up: Callable[[], None]) -> None:
    async with room:
        await _start(instance, on_warm_up)


async def _start(instance: Instance, on_warm_up: Callable[[], None]) -> None:
    started = monotonic_ns()
    await instance.start()
    plan, seconds = instance.plan, (monotonic_ns() - started) / 1e9
    _log.debug("started instance '%s' (%s device %d) in %.3f s", plan.name, plan.kind.name, plan.device_id, seconds)
    if instance.plan.source.config.warmups:
        on_warm_up()
        await warm_up(instance)
