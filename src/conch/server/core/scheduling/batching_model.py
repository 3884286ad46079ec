# Compiled by mypyc in wheels.
"""A model version with the default scheduler or the dynamic batcher: dispatches its queue to its instances.

Both `submit` and the release of an instance call `_dispatch`. While an instance is free and a request waits, the pure
function `batching.decide` returns what to run.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from time import monotonic_ns
from typing import Final

from conch.base.errors import DeadlineMissed, QueueFull, QueueTimeout
from conch.domain.model_config import ModelConfig
from conch.domain.request import InferRequest, Respond, TokenMeter
from conch.domain.scheduling.batching import RUN_ONE, BatchRules, Run, Wait, decide, needs_grouping
from conch.domain.scheduling.estimate import start_in
from conch.domain.scheduling.queue import PolicyQueue
from conch.server.backends.base import Instance
from conch.server.backends.batch import Batch
from conch.server.core.pending import Pending
from conch.server.core.response_order import ResponseOrder
from conch.server.core.scheduling.scheduled_model import ScheduledModel
from conch.server.core.served_model import way_ns

# Waiting requests among which those of the first one's shape are looked for.
_MAX_LOOKED_AT: Final = 256
# A batch that waits for its delay begins this long before it is too late for a deadline.
_START_MARGIN_NS: Final = 2_000_000


class BatchingModel(ScheduledModel):
    """A model version with the default scheduler or the dynamic batcher."""

    def __init__(
        self,
        config: ModelConfig,
        version: int,
        labels: Mapping[str, Sequence[str]],
        instances: Sequence[Instance],
        loop: asyncio.AbstractEventLoop,
        *,
        max_queue_size: int = 0,
    ) -> None:
        """Create the model. `max_queue_size` bounds the queue where the configuration does not; 0 is unbounded."""
        super().__init__(config, version, labels, instances, loop)
        self._rules = BatchRules.of(config)
        self._grouped = not self._rules.single and needs_grouping(config)
        self._ragged = config.ragged_inputs
        self._queue: PolicyQueue[Pending] = PolicyQueue(config.dynamic_batching, max_queue_size)
        self._alike: list[Pending] = []
        dynamic = config.dynamic_batching
        self._order = ResponseOrder() if dynamic and dynamic.preserve_ordering else None

    @property
    def _gathers(self) -> bool:
        """Whether requests of equal shapes are batched before others that came earlier: texts of equal lengths."""
        return self.encoder is not None and self._grouped and self._order is None

    @property
    def can_rearrange(self) -> bool:
        """Whether `rearrange` works: not if instances work on batches after their release, or share resources."""
        return self.limiter is None and not self.config.decoupled

    def _own(self, instance: Instance) -> None:
        super()._own(instance)
        instance.overlaps = self.limiter is None

    def refusal(self, now: int, meter: TokenMeter | None = None) -> QueueFull | None:
        return self._queue.refusal(now) if meter is None else self._queue.refusal(now, meter.tenant, meter.weight)

    def expected(
        self, now: int, batch_size: int = 1, priority: int = 0, meter: TokenMeter | None = None
    ) -> tuple[int, int]:
        times = self._service_times
        times.update(self.statistics.batches, now)
        largest = max(self._rules.max_batch_size, 1)
        tenant, weight = ("", 1) if meter is None else (meter.tenant, meter.weight)
        before = self._queue.before(priority, tenant, weight)
        if self._rules.single:  # those before it are assumed to have its size
            service = times.of(batch_size, now)
            batches, batch_ns = before // batch_size, service
        else:
            service = times.of(min(before + batch_size, largest), now)
            batches, batch_ns = before // largest, times.of(largest, now)
        free_in: list[int] = []
        for instance in self.instances:
            if instance.ready:
                free_in += self._free_in(instance, now)
        wait = start_in(free_in, batches, batch_ns) if free_in else 0
        # An instance that is idle has nothing better to do: with a margin that exceeds the deadline it would stay so.
        return wait, times.with_margin(service) if wait else service

    def _free_in(self, instance: Instance, now: int) -> list[int]:
        """Return in about how many ns an instance can begin a batch: for each that it executes concurrently."""
        times = [0] if instance.takes(len(self._held[instance])) else []
        for batch in self._held[instance]:
            batch_ns = self._service_times.of(batch.size(), now)
            if batch.begun:
                times.append(max(batch_ns - (now - batch.started), 0))
            else:
                times[-1] += batch_ns
        return times

    def submit(self, request: InferRequest, respond: Respond) -> Pending:
        if self.cache is not None:
            lookup = self.cache.look_up(request, respond, self._order, self._admit_missed)
            if isinstance(lookup, Pending):
                return lookup
            respond = lookup
        return self._admit(request, respond, self._order)

    def _admit_missed(self, request: InferRequest, respond: Respond) -> Pending:
        """Admit a request that has its place in the order of responses."""
        return self._admit(request, respond, None)

    def _admit(self, request: InferRequest, respond: Respond, order: ResponseOrder | None) -> Pending:
        self._prepare(request)
        pending = Pending(request, respond, self, self.events)
        if self._grouped:
            pending.group_key = _group_key(request, self._ragged)
        meter = request.meter
        if meter is not None and self._order is None:  # a fair order would not reach the clients
            pending.tenant, pending.weight = meter.tenant, meter.weight
        if request.timeout_us and not request.admitted:
            self._check_timeout(request)
        if request.timeline.deadline:
            if request.admitted:  # as the step of an ensemble
                service = self.expected(monotonic_ns(), request.batch_size, request.priority, meter)[1]
                deadline = request.timeline.deadline
                pending.starts_by = deadline - way_ns(request.timeline, deadline) - service
            else:
                pending.starts_by = self.check_deadline(request.timeline, request.batch_size, request.priority, meter)
        now = pending.queued = request.timeline.queued = monotonic_ns()
        try:
            evicted = self._queue.push(
                pending,
                now,
                priority=request.priority,
                timeout_us=request.timeout_us,
                admitted=request.admitted,
            )
        except QueueFull as error:
            self.statistics.count_failure(now - request.timeline.received, error.reason)
            self.events.refused(request.timeline, error, now)
            raise error.of_request(request.id) from None
        if evicted is not None:
            evicted.finish(self._queue.rejection(now).of_request(evicted.request.id))
        if order is not None:
            pending.respond = order.enter(respond)
        self.enter()
        self.statistics.pending += 1
        if self.statistics.declared is not None:
            self.statistics.declared.begin(request)
        if self._idle:
            self._dispatch()
        else:
            self._dispatch_soon()
        return pending

    def _check_timeout(self, request: InferRequest) -> None:
        """Raise QueueTimeout if by the estimate the request would wait for longer than its timeout permits."""
        longest = self._queue.max_wait(request.priority, request.timeout_us)
        if longest:
            wait = self.expected(monotonic_ns(), request.batch_size, request.priority, request.meter)[0]
            if wait > longest:
                retry_after_s = (wait - longest) / 1e9
                self.refuse_for(QueueTimeout("Request timeout expired", retry_after_s=retry_after_s), request.timeline)

    def _dispatch(self) -> None:
        self._dispatching = False
        wake = 0
        expiry = self._queue.next_expiry()
        if expiry and expiry <= monotonic_ns():
            self._expire()
        while self._queue:
            instance = self._free_instance()
            if instance is None:
                break
            decision = self._decide(self._rules)
            late = False
            if isinstance(decision, Wait):
                wake = decision.until
                start_by = self._queue.next_start_by()
                if start_by and start_by < wake:  # a request must not wait for others until it is too late
                    wake = start_by - _START_MARGIN_NS
                    if wake <= monotonic_ns():
                        wake, decision = 0, self._decide(replace(self._rules, delay_ns=0))
                        late = True
            if isinstance(decision, Wait):
                break
            if self.limiter is not None:
                instance = self.limiter.acquire(self._idle)
                if instance is None:
                    break
            self._run(instance, self._taken(decision.number), "deadline" if late else decision.why)
        self._alike = []  # would keep requests from being freed
        if wake or expiry or self._timer.armed:
            self._arm(wake)

    def _free_instance(self) -> Instance | None:
        if self._idle:
            return self._idle[-1]
        if self.limiter is not None:  # each execution claims its own resources
            return None
        crowded = self._rules.is_crowded(len(self._queue), len(self.instances), self._queue.next_expiry())
        for instance in self.instances:
            depth = instance.ahead(crowded=crowded)
            if self._rules.has_room(len(self._held[instance]), depth, crowded=crowded) and instance.ready:
                return instance
        return None

    def _decide(self, rules: BatchRules) -> Run | Wait:
        if rules.single:
            return RUN_ONE
        if not self._gathers:
            return decide(self._queue, rules, monotonic_ns())
        self._alike = self._queue.like_first(_MAX_LOOKED_AT)
        return decide(self._alike, rules, monotonic_ns())

    def _taken(self, number: int) -> list[Pending]:
        """Remove and return the requests that `_decide` has chosen."""
        if not self._gathers or self._rules.single:
            return self._queue.pop(number)
        taken = self._alike[:number]
        self._queue.take(taken)
        return taken

    def _note_ahead(self, requests: Sequence[Pending]) -> None:
        self._queue.note_ahead(requests)

    def _begin(self, pending: Pending) -> None:
        super()._begin(pending)
        self._queue.begin(pending)

    def _after_release(self, batch: Batch) -> None:  # noqa: ARG002
        if self._idle:
            if self._queue:
                self._dispatch()
        else:
            self._dispatch_soon()

    def _queue_state(self) -> tuple[int, int]:
        return len(self._queue), self._queue.oldest()

    def _waiting(self) -> Iterable[Pending]:
        return self._queue

    def _remove(self, pending: Pending) -> None:
        self._queue.remove(pending)

    def _requeue(self, pending: Pending) -> None:
        self._queue.requeue(pending)

    def _expire(self) -> None:
        now = monotonic_ns()
        for pending in self._queue.expire(now):
            if pending.starts_by and pending.starts_by <= now:
                waited_ms = (now - pending.queued) / 1e6
                text = f"the deadline of the request could no longer be met after {waited_ms:.1f} ms in the queue"
                pending.abort(DeadlineMissed(text, "queue"))
            else:
                pending.finish(QueueTimeout("Request timeout expired"))

    def _arm(self, wake: int) -> None:
        """Set the timer to the earlier of the batch delay and the next queue timeout."""
        expiry = self._queue.next_expiry()
        at = min(wake, expiry) if wake and expiry else wake or expiry
        if at:
            self._timer.set(at)
        else:
            self._timer.cancel()


def _group_key(request: InferRequest, ragged: Set[str]) -> object:
    return tuple(sorted((tensor.name, () if tensor.name in ragged else tensor.shape[1:]) for tensor in request.inputs))
