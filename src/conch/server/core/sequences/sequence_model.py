# Compiled by mypyc in wheels.
"""A model version with the sequence batcher: a sequence stays on one instance, and its requests run in order.

`sequence_slots` decides which sequence may run, `batching` which of them run together, and `tensors` adds controls and
state to their requests. This module applies that to the instances and the clock.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count, islice
from pathlib import Path
from time import monotonic_ns
from typing import Final

from conch.base.errors import Cancelled, ConchError, InvalidRequest, QueueFull, QueueTimeout, Unavailable
from conch.domain.model_config import ModelConfig
from conch.domain.request import SEQUENCE_END, SEQUENCE_START, InferRequest, InferResponse, Respond, TokenMeter
from conch.domain.scheduling.batching import Run, Wait, decide
from conch.domain.scheduling.queue import QUEUE_IS_FULL, ServiceRate
from conch.domain.scheduling.sequence_slots import (
    DirectRules,
    Key,
    LiveSequence,
    SequenceSlots,
    decide_direct,
    oldest_rules,
    slot_batch,
)
from conch.domain.scheduling.waiting import State
from conch.server.backends.base import Instance
from conch.server.backends.batch import Batch, Execution
from conch.server.core.pending import Pending, not_iterative
from conch.server.core.response_order import ResponseOrder
from conch.server.core.scheduling.scheduled_model import ScheduledModel
from conch.server.core.sequences.sequence import SequenceRequest
from conch.server.core.sequences.tensors import SequenceTensors
from conch.server.core.served_model import ServedModel

_CANCELLED: Final = "was ended by the cancellation of a request"
# Sequences that ended without END, whose reason is kept for the error of later requests.
_MAX_KEPT_REASONS: Final = 1000


class SequenceModel(ScheduledModel):
    """A model version with the sequence batcher, direct or oldest."""

    def __init__(
        self,
        config: ModelConfig,
        version: int,
        labels: Mapping[str, Sequence[str]],
        instances: Sequence[Instance],
        loop: asyncio.AbstractEventLoop,
        directory: Path,
        *,
        max_queue_size: int = 0,
    ) -> None:
        """Create the model. `max_queue_size` bounds the requests that wait; 0 is unbounded."""
        super().__init__(config, version, labels, instances, loop)
        batching = config.sequence_batching
        assert batching is not None
        self._batching = batching
        self._oldest = oldest_rules(config, batching)
        self._direct = DirectRules.of(config, batching)
        largest = self._direct.slots
        slots = (batching.max_candidates or largest) if batching.oldest else largest
        self._slots: SequenceSlots[SequenceRequest] = SequenceSlots(len(instances), slots, batching.max_idle_us * 1000)
        self._tensors = SequenceTensors(config, directory)
        self._orders = [ResponseOrder() for _ in instances] if batching.oldest and batching.preserve_ordering else []
        self._was_ready = [False] * len(instances)
        self._max_queue_size = max_queue_size
        self._service_rate = ServiceRate()
        self._ids = count(1)  # for requests without an id to iterative models
        self._ends: dict[Key, str] = {}
        self._takes_sources = False  # a client's inputs may also fill a slot of a later batch
        self._wake = 0  # the time that the timer is set to
        self._predecessors: list[SequenceModel] = []
        self._replaced = False  # whether another version has replaced it
        self._is_held = False  # whether it is held for sequences that survive the replacement

    async def start(self) -> None:
        await asyncio.to_thread(self._tensors.load)
        await super().start()
        self._was_ready = [instance.ready for instance in self.instances]

    async def drain(self) -> None:
        """Wait until no request holds the model.

        Sequences survive if another version has replaced this one. Otherwise no more requests can come: idle sequences
        end at once, also in the versions that this one has replaced, and free their slots for those that wait.
        """
        if not self._replaced:
            for model in (*self._predecessors, self):
                model._slots.expire_idle_now()
                model._dispatch_soon()
        await super().drain()

    def take_over(self, old: ServedModel) -> None:
        """Route requests of the old version's sequences to it until they end; then it can be stopped."""
        if isinstance(old, SequenceModel):
            old._replaced = True
            self._predecessors += [
                predecessor for predecessor in (*old._predecessors, old) if predecessor.hold_for_sequences()
            ]

    def hold_for_sequences(self) -> bool:
        """Hold the model for the sequences that have begun; False if there is none."""
        if not self._is_held and len(self._slots):
            self._is_held = True
            self.enter()
        return self._is_held

    def is_open(self, key: Key) -> bool:
        """Whether the sequence is open: more requests of it may come."""
        return self._slots.open(key) is not None

    def refusal(self, now: int, meter: TokenMeter | None = None) -> QueueFull | None:  # noqa: ARG002
        waiting = self.statistics.pending
        if not self._max_queue_size or waiting < self._max_queue_size:
            return None
        return QueueFull(QUEUE_IS_FULL, retry_after_s=self._service_rate.seconds_for(waiting, now) or 0.0)

    def submit(self, request: InferRequest, respond: Respond) -> Pending:
        if self._predecessors and not request.flags & SEQUENCE_START:
            self._predecessors = [old for old in self._predecessors if old.hold_for_sequences()]
            for old in self._predecessors:
                if old.is_open(request.correlation_id):
                    return old.submit(request, respond)
        self._prepare(request)
        if request.batch_size > 1:
            raise InvalidRequest(
                f"inference request to model '{self.config.name}' must specify batch-size 1 due to requirements of "
                "sequence batcher"
            )
        key = self._key(request)
        self._tensors.check_id(request)
        now = monotonic_ns()
        sequence = self._slots.open(key)
        if sequence is None and not request.flags & SEQUENCE_START:
            raise self._not_started(key)
        if not request.admitted and (refusal := self.refusal(now)) is not None:
            self.statistics.count_failure(now - request.timeline.received, refusal.reason)
            self.events.refused(request.timeline, refusal, now)
            raise refusal.of_request(request.id)
        if sequence is None:
            sequence = self._slots.start(key)
            self._ends.pop(key, None)
        pending = SequenceRequest(request, respond, self, sequence, self.events)
        pending.queued = request.timeline.queued = now
        expires = now + request.timeout_us * 1000 if request.timeout_us else request.timeline.deadline
        self._slots.add(sequence, pending, end=bool(request.flags & SEQUENCE_END), expires=expires)
        self.enter()
        self.statistics.pending += 1
        if self.statistics.declared is not None:
            self.statistics.declared.begin(request)
        if self._idle:
            self._dispatch()
        else:
            self._dispatch_soon()
        return pending

    def settled(self, pending: Pending, answer: InferResponse | ConchError | None, previous: State) -> None:
        """Count a request that has ended, and continue or end its sequence."""
        super().settled(pending, answer, previous)
        assert isinstance(pending, SequenceRequest)
        if isinstance(answer, Cancelled):
            self._end(pending.sequence, Cancelled("another request of its sequence was cancelled"), _CANCELLED)
        if previous is State.EXECUTING and pending.released:
            self._continue(pending)

    def responded(self, pending: SequenceRequest, response: InferResponse) -> ConchError | None:
        """Store the state that a response carries; return an error if it is invalid."""
        return self._tensors.store_state(pending, response)

    def rescheduled(self, pending: SequenceRequest) -> None:
        """Queue a request of an iterative model again, for the next turn of its sequence."""
        if not self._batching.iterative:
            pending.finish(not_iterative(self.config.name))
            return
        pending.state = State.QUEUED
        pending.batch = None
        pending.again = True
        pending.prepared = False
        pending.request.flags = 0
        pending.request.timeline.queued = monotonic_ns()
        self.statistics.pending += 1
        if pending.released:
            self._continue(pending)

    def _key(self, request: InferRequest) -> Key:
        """Return the key of the request's sequence. Raises InvalidRequest if it has no id."""
        if request.correlation_id:
            return request.correlation_id
        if not self._batching.iterative:
            raise InvalidRequest(
                f"inference request to model '{self.config.name}' must specify a non-zero or non-empty correlation ID"
            )
        request.correlation_id = next(self._ids)
        request.flags = SEQUENCE_START
        return (request.correlation_id,)

    def _not_started(self, key: Key) -> InvalidRequest:
        reason = self._ends.get(key)
        return InvalidRequest(
            f"inference request for sequence {key} to model '{self.config.name}' must specify the START flag on the "
            f"first request of the sequence{f'; the one before {reason}' if reason else ''}"
        )

    def _dispatch(self) -> None:
        self._dispatching = False
        now = monotonic_ns()
        event = self._slots.next_event()
        if event and event <= now:
            self._end_overdue(now)
        self._slots.fill(now)
        if self._is_held and not len(self._slots):
            self._is_held = False
            self.leave()
        wake = 0
        for index, instance in enumerate(self.instances):
            while self._slots.ready[index] and self._has_room(instance):
                decision = self._decide(index, now)
                if isinstance(decision, Wait):
                    wake = min(wake or decision.until, decision.until)
                    break
                if self.limiter is not None and self.limiter.acquire([instance]) is None:
                    break
                self._run_next(index, instance, decision.number, decision.why)
        event = self._slots.next_event()
        at = min(wake, event) if wake and event else wake or event
        # Sequences become idle and busy with every request: a spurious wake-up costs less than setting the timer.
        if at and (not self._timer.armed or at < self._wake):
            self._wake = at
            self._timer.set(at)

    def _has_room(self, instance: Instance) -> bool:
        held = len(self._held[instance])
        if held == 0:
            return instance in self._idle
        if self.limiter is not None or not self._batching.oldest:
            return False
        return held <= min(instance.ahead(crowded=False), 1) and instance.ready

    def _decide(self, index: int, now: int) -> Run | Wait:
        """Decide over the sequences of an instance that are ready."""
        ready = self._slots.ready[index]
        if self._batching.oldest:
            return decide(map(self._head, ready), self._oldest, now)
        return decide_direct([self._head(sequence) for sequence in ready], self._direct, now)

    def _run_next(self, index: int, instance: Instance, number: int, why: str) -> None:
        """Run the next requests of the first `number` ready sequences, or of those of them that can share a batch."""
        ready = list(islice(self._slots.ready[index], number))
        batch: list[LiveSequence[SequenceRequest] | None] = [*ready] if self._batching.oldest else slot_batch(ready)
        taken = [None if sequence is None else self._slots.take(sequence) for sequence in batch]
        requests = [pending for pending in taken if pending is not None]
        executions: list[Execution] = [pending or Filler(self._tensors.filler(requests[0])) for pending in taken]
        for pending in requests:
            pending.released = False
            if self._orders:
                pending.respond = self._orders[index].enter(pending.respond)
        self._service_rate.taken += len(requests)
        self._run(instance, requests, why, executions)

    def _head(self, sequence: LiveSequence[SequenceRequest]) -> SequenceRequest:
        """Return the next request of a sequence, with controls and state."""
        pending = sequence.waiting[0]
        if not pending.prepared:
            self._tensors.prepare(pending)
        return pending

    def _after_release(self, batch: Batch) -> None:
        is_answered = True
        for execution in batch.executions:
            if isinstance(execution, SequenceRequest):
                execution.released = True
                if execution.again or execution.state is State.DONE:
                    self._continue(execution)
                else:
                    is_answered = False
        # Backends may release a batch just before they answer it, and only then are its sequences ready for the next
        # one. Without them concurrent sequences would alternate instead of sharing batches.
        if self._idle and is_answered:
            self._dispatch()
        else:
            self._dispatch_soon()

    def _on_give_back(self, instance: Instance, batch: Batch) -> None:
        for execution in batch.executions:
            if isinstance(execution, SequenceRequest) and execution.state is State.DONE:
                self._continue(execution)
        super()._on_give_back(instance, batch)

    def _continue(self, pending: SequenceRequest) -> None:
        """Continue a sequence after the instance has released its request, which is settled or rescheduled."""
        sequence, now = pending.sequence, monotonic_ns()
        if pending.again and pending.state is not State.DONE:
            pending.again = False
            self._slots.give_back(sequence, pending, now, begun=True)
        else:
            self._slots.done(sequence, now)
            if self._batching.iterative:
                self._end(sequence, Cancelled("the model has finished with the sequence"), "was finished by the model")
        self._dispatch_soon()

    def _requeue(self, pending: Pending) -> None:
        assert isinstance(pending, SequenceRequest)
        self._slots.give_back(pending.sequence, pending, monotonic_ns(), begun=False)

    def _waiting(self) -> Iterable[Pending]:
        return [pending for sequence in self._slots for pending in sequence.waiting]

    def _remove(self, pending: Pending) -> None:
        """Do nothing: the request was removed with its sequence."""

    def _fail_waiting(self, error: ConchError) -> None:
        for sequence in self._slots:
            self._end(sequence, error, "had to be given up")

    def _end(self, sequence: LiveSequence[SequenceRequest], error: ConchError, reason: str) -> None:
        """End a sequence and fail its waiting requests; `reason` is for the error of later requests."""
        if sequence.open and not isinstance(sequence.key, tuple):
            self._ends[sequence.key] = reason
            if len(self._ends) > _MAX_KEPT_REASONS:
                del self._ends[next(iter(self._ends))]
        for pending in self._slots.end(sequence, monotonic_ns()):
            pending.finish(error)
        self._dispatch_soon()

    def _end_overdue(self, now: int) -> None:
        for sequence in self._slots.expired(now):
            text = "timeout of the corresponding sequence has been expired"
            self._end(sequence, QueueTimeout(text), "waited for a slot for longer than its timeout")
        idle = f"had no request for max_sequence_idle_microseconds, {self._batching.max_idle_us} µs"
        for sequence in self._slots.idle(now):
            self._end(sequence, Unavailable(idle), idle)

    def _ready_changed(self) -> None:
        """Follow an instance that died, which ends its sequences, or recovered."""
        for index, instance in enumerate(self.instances):
            if instance.ready == self._was_ready[index]:
                continue
            self._was_ready[index] = instance.ready
            if instance.ready:
                self._slots.restore(index)
                continue
            reason = f"was lost with its model instance '{instance.plan.name}'"
            for sequence in self._slots.withhold(index):
                text = f"sequence {sequence.key} of model '{self.config.name}' {reason}; start it again"
                self._end(sequence, Unavailable(text), reason)
        super()._ready_changed()


class Filler(Execution):
    """An execution that fills the slot of a sequence without a request."""

    def on_cancel(self, notify: Callable[[], None]) -> None:
        """Ignore the callback: a filler is not cancelled."""

    def send(self, response: InferResponse | ConchError) -> None:
        """Drop the response."""

    def finish(self, answer: InferResponse | ConchError | None) -> None:
        """Drop the response."""

    def reschedule(self) -> None:
        """Ignore the request of the model."""
