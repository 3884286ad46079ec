"""A served model whose requests come in sequences: a sequence keeps to one instance, and is executed in its order.

`sequence_slots` says which sequence may go on, `sequence_batching` which of these run together, `sequence_tensors` what
the instance is told of them; here they meet the instances and the clock.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count, islice
from pathlib import Path
from time import monotonic_ns

from conch.backends.base import Instance
from conch.backends.batch import Batch, Execution
from conch.core.pending import Pending, State, not_iterative
from conch.core.response_order import ResponseOrder
from conch.core.scheduling.batching import Run, Wait, decide
from conch.core.scheduling.scheduled_model import ScheduledModel
from conch.core.scheduling.service_rate import ServiceRate
from conch.core.sequences.batching import DirectRules, decide_direct, oldest_rules, places
from conch.core.sequences.sequence import Key, LiveSequence, SequenceRequest
from conch.core.sequences.slots import SequenceSlots
from conch.core.sequences.tensors import SequenceTensors
from conch.core.served_model import ServedModel
from conch.errors import Cancelled, ConchError, InvalidRequest, QueueFull, QueueTimeout, Unavailable
from conch.model_config import ModelConfig
from conch.request import SEQUENCE_END, SEQUENCE_START, InferRequest, InferResponse, Respond

# Of so many sequences it is remembered why they ended without END, to tell whoever goes on with one.
_REMEMBERED_ENDS = 1000


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
        """Assign. `directory` is the model's; so many requests may wait as `max_queue_size` says, any number if 0."""
        super().__init__(config, version, labels, instances, loop)
        batching = config.sequence_batching
        assert batching is not None
        self._batching = batching
        self._oldest = oldest_rules(config, batching)
        self._direct = DirectRules.of(config, batching)
        largest = self._direct.slots
        slots = (batching.max_candidates or largest) if batching.oldest else largest
        self._slots = SequenceSlots(len(instances), slots, batching.max_idle_us * 1000)
        self._tensors = SequenceTensors(config, directory)
        self._orders = [ResponseOrder() for _ in instances] if batching.oldest and batching.preserve_ordering else []
        self._up = [False] * len(instances)
        self._bound = max_queue_size
        self._service_rate = ServiceRate()
        self._ids = count(1)  # for requests that an iterative model makes sequences of
        self._ends: dict[Key, str] = {}
        self._takes_sources = False  # what a client asked with may keep a place in a later batch, too
        self._wake = 0  # what the timer is set to
        self._predecessors: list[SequenceModel] = []
        self._replaced = False  # whether another version has taken its place
        self._lingers = False  # whether it is held for sequences that go on in spite of that

    async def start(self) -> None:
        await asyncio.to_thread(self._tensors.load)
        await super().start()
        self._up = [instance.ready for instance in self.instances]

    async def drain(self) -> None:
        """Wait until nobody holds it.

        Sequences go on if another version has taken its place. If not, they cannot, in the versions that it has
        replaced neither, and keep no slot from those that wait for one.
        """
        if not self._replaced:
            for model in (*self._predecessors, self):
                model._slots.let_none_rest()
                model._dispatch_soon()
        await super().drain()

    def take_over(self, old: ServedModel) -> None:
        """Leave the sequences of the version that is replaced to it, until they end; then it can go."""
        if isinstance(old, SequenceModel):
            old._replaced = True
            self._predecessors += [each for each in (*old._predecessors, old) if each.linger()]

    def linger(self) -> bool:
        """Stay up for the sequences that have begun; False if there is none."""
        if not self._lingers and len(self._slots):
            self._lingers = True
            self.enter()
        return self._lingers

    def goes_on(self, key: Key) -> bool:
        """Whether requests of this sequence are expected."""
        return self._slots.open(key) is not None

    def refusal(self, now: int) -> QueueFull | None:
        waiting = self.statistics.pending
        if not self._bound or waiting < self._bound:
            return None
        return QueueFull(
            "Exceeds maximum queue size", retry_after_s=self._service_rate.seconds_for(waiting, now) or 0.0
        )

    def submit(self, request: InferRequest, respond: Respond) -> Pending:
        if self._predecessors and not request.flags & SEQUENCE_START:
            self._predecessors = [old for old in self._predecessors if old.linger()]
            for old in self._predecessors:
                if old.goes_on(request.correlation_id):
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
            raise refusal
        if sequence is None:
            sequence = self._slots.start(key)
            self._ends.pop(key, None)
        pending = SequenceRequest(request, respond, self, sequence)
        pending.queued = request.timeline.queued = now
        expires = now + request.timeout_us * 1000 if request.timeout_us else 0
        self._slots.add(pending, end=bool(request.flags & SEQUENCE_END), expires=expires)
        self.enter()
        self.statistics.pending += 1
        if self._idle:
            self._dispatch()
        else:
            self._dispatch_soon()
        return pending

    def settled(self, pending: Pending, answer: InferResponse | ConchError | None, previous: State) -> None:
        """Write a finished request into the books, and let its sequence go on or end."""
        super().settled(pending, answer, previous)
        assert isinstance(pending, SequenceRequest)
        if isinstance(answer, Cancelled):
            self._end(pending.sequence, Cancelled("another request of its sequence was cancelled"), _CANCELLED)
        if previous is State.EXECUTING and pending.released:
            self._step_over(pending)

    def responded(self, pending: SequenceRequest, response: InferResponse) -> ConchError | None:
        """Keep the state that a response carries; returns an error if it cannot be right."""
        return self._tensors.keep(pending, response)

    def rescheduled(self, pending: SequenceRequest) -> None:
        """Let an iterative model have a request again, in the next turn of its sequence."""
        if not self._batching.iterative:
            pending.finish(not_iterative(self.config.name))
            return
        pending.state = State.QUEUED
        pending.batch = None
        pending.again = True
        pending.dressed = False
        pending.request.flags = 0
        pending.request.timeline.queued = monotonic_ns()
        self.statistics.pending += 1
        if pending.released:
            self._step_over(pending)

    def _key(self, request: InferRequest) -> Key:
        """Return what tells the request's sequence from others. Raises InvalidRequest if it has no id."""
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
        why = self._ends.get(key)
        return InvalidRequest(
            f"inference request for sequence {key} to model '{self.config.name}' must specify the START flag on the "
            f"first request of the sequence{f'; the one before {why}' if why else ''}"
        )

    def _dispatch(self) -> None:
        self._dispatching = False
        now = monotonic_ns()
        event = self._slots.next_event()
        if event and event <= now:
            self._end_overdue(now)
        self._slots.fill(now)
        if self._lingers and not len(self._slots):
            self._lingers = False
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
                self._run_next(index, instance, decision.number)
        event = self._slots.next_event()
        at = min(wake, event) if wake and event else wake or event
        # Sequences rest and go on with every request: it costs less to be woken for nothing than to set the timer.
        if at and (not self._timer.armed or at < self._wake):
            self._wake = at
            self._timer.set(at)

    def _has_room(self, instance: Instance) -> bool:
        held = len(self._held[instance])
        if held == 0:
            return instance in self._idle
        if self.limiter is not None or not self._batching.oldest:
            return False
        return held <= min(instance.ahead, 1) and instance.ready

    def _decide(self, index: int, now: int) -> Run | Wait:
        """Decide over the sequences of an instance that are ready."""
        ready = self._slots.ready[index]
        if self._batching.oldest:
            return decide(map(self._head, ready), self._oldest, now)
        return decide_direct([self._head(sequence) for sequence in ready], self._direct, now)

    def _run_next(self, index: int, instance: Instance, number: int) -> None:
        """Run the first so many of the sequences that are ready, or as many of them as can share a batch."""
        ready = list(islice(self._slots.ready[index], number))
        batch: list[LiveSequence | None] = [*ready] if self._batching.oldest else places(ready)
        taken = [None if sequence is None else self._slots.take(sequence) for sequence in batch]
        requests = [pending for pending in taken if pending is not None]
        executions: list[Execution] = [pending or Filler(self._tensors.filler(requests[0])) for pending in taken]
        for pending in requests:
            pending.released = False
            if self._orders:
                pending.respond = self._orders[index].enter(pending.respond)
        self._service_rate.taken += len(requests)
        self._run(instance, requests, executions)

    def _head(self, sequence: LiveSequence) -> SequenceRequest:
        """Return the next request of a sequence, ready for the instance."""
        pending = sequence.waiting[0]
        if not pending.dressed:
            self._tensors.dress(pending)
        return pending

    def _after_release(self, batch: Batch) -> None:
        for execution in batch.executions:
            if isinstance(execution, SequenceRequest):
                execution.released = True
                if execution.again or execution.state is State.DONE:
                    self._step_over(execution)
        if self._idle:
            self._dispatch()
        else:
            self._dispatch_soon()

    def _on_give_back(self, instance: Instance, batch: Batch) -> None:
        for execution in batch.executions:
            if isinstance(execution, SequenceRequest) and execution.state is State.DONE:
                self._step_over(execution)
        super()._on_give_back(instance, batch)

    def _step_over(self, pending: SequenceRequest) -> None:
        """Go on with a sequence, one of its requests being out of the instance's hands and settled or rescheduled."""
        sequence, now = pending.sequence, monotonic_ns()
        if pending.again and pending.state is not State.DONE:
            pending.again = False
            self._slots.give_back(pending, now, begun=True)
        else:
            self._slots.done(sequence, now)
            if self._batching.iterative:
                self._end(sequence, Cancelled("the model has finished with the sequence"), "was finished by the model")
        self._dispatch_soon()

    def _requeue(self, pending: Pending) -> None:
        assert isinstance(pending, SequenceRequest)
        self._slots.give_back(pending, monotonic_ns(), begun=False)

    def _waiting(self) -> Iterable[Pending]:
        return [pending for sequence in self._slots for pending in sequence.waiting]

    def _remove(self, pending: Pending) -> None:
        """It went with its sequence."""

    def _fail_waiting(self, error: ConchError) -> None:
        for sequence in self._slots:
            self._end(sequence, error, "had to be given up")

    def _end(self, sequence: LiveSequence, error: ConchError, why: str) -> None:
        """End a sequence, its waiting requests with an error; `why` is for whoever wants to go on with it."""
        if sequence.open and not isinstance(sequence.key, tuple):
            self._ends[sequence.key] = why
            if len(self._ends) > _REMEMBERED_ENDS:
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
        """An instance died, and its sequences with it, or came back."""
        for index, instance in enumerate(self.instances):
            if instance.ready == self._up[index]:
                continue
            self._up[index] = instance.ready
            if instance.ready:
                self._slots.restore(index)
                continue
            why = f"was lost with its model instance '{instance.plan.name}'"
            for sequence in self._slots.lose(index):
                text = f"sequence {sequence.key} of model '{self.config.name}' {why}; start it again"
                self._end(sequence, Unavailable(text), why)
        super()._ready_changed()


_CANCELLED = "was ended by the cancellation of a request"


class Filler:
    """An execution that only keeps a place in a batch."""

    cancelled = False

    def __init__(self, request: InferRequest) -> None:
        self.request = request

    def on_cancel(self, notify: Callable[[], None]) -> None:
        """Nobody cancels it."""

    def send(self, response: InferResponse | ConchError) -> None:
        """Drop it."""

    def finish(self, answer: InferResponse | ConchError | None) -> None:
        """Nobody waits for it."""

    def reschedule(self) -> None:
        """Nobody wants it again."""
