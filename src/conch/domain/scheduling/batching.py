# Compiled by mypyc in wheels.
"""The batching decision, a pure function of the queue and the clock: which waiting requests run together, and when.

The rules are those of Triton's dynamic batcher (model configuration, "Dynamic Batcher"). Requests are taken in order
and never split; a batch closes when the next request would overfill it or cannot share it. A preferred size runs at
once, and so does a batch that has reached the largest preferred size or would exceed it with the next request.
Anything else runs when the oldest request has waited for `max_queue_delay_us`, at once if that is 0.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from conch.domain.model_config import ModelConfig
from conch.domain.scheduling.waiting import Waiting


class Run(NamedTuple):
    """Execute the first `number` waiting requests now; `why` is one of the event log's `WHY_NOW`."""

    number: int
    why: str


class Wait(NamedTuple):
    """Nothing to execute before `until` (monotonic ns), unless another request arrives."""

    until: int


RUN_ONE: Final = Run(1, "single")


@dataclass(frozen=True, slots=True)
class BatchRules:
    """The batching settings of a model. `max_batch_size` 1 without a delay executes requests one by one."""

    max_batch_size: int
    preferred: frozenset[int]
    delay_ns: int
    single: bool  # the default scheduler: one request an execution, whatever its batch size
    largest_preferred: int = 0

    @classmethod
    def of(cls, config: ModelConfig) -> "BatchRules":
        """Derive the rules of a configuration."""
        dynamic = config.dynamic_batching
        # As in Triton: dynamic batching of a model without a batch dimension degrades to one request per execution.
        if dynamic is None or config.max_batch_size == 0:
            return cls(max(config.max_batch_size, 1), frozenset(), 0, single=True)
        preferred = frozenset(dynamic.preferred_batch_sizes) or frozenset({config.max_batch_size})
        delay_ns = dynamic.max_queue_delay_us * 1000
        return cls(config.max_batch_size, preferred, delay_ns, single=False, largest_preferred=max(preferred))

    def is_crowded(self, waiting: int, instances: int, next_expiry: int) -> bool:
        """Whether a full batch waits for every instance and no request has a timeout, which would not hold there."""
        return not next_expiry and waiting >= instances * (1 if self.single else self.max_batch_size)

    def has_room(self, held: int, depth: int, *, crowded: bool) -> bool:
        """Whether an instance that executes gets a batch ahead. It holds `held` batches; `depth` may wait behind one.

        A batch that forms later is larger, but without one ahead the instance would idle for the IPC round trip.
        """
        return 0 < held <= (depth if crowded or self.single else min(depth, 1))


def needs_grouping(config: ModelConfig) -> bool:
    """Whether requests may differ in shapes or in the inputs present, so that they cannot share a batch."""
    return any(spec.optional or (-1 in spec.dims and not spec.allow_ragged_batch) for spec in config.inputs)


def decide(waiting: Iterable[Waiting], rules: BatchRules, now: int) -> Run | Wait:
    """Return what to do with a queue that is not empty. `waiting` is in the order of service."""
    if rules.single:
        return RUN_ONE
    count = total = best = 0
    oldest = now
    key: object = None
    closed = False
    why = "preferred"
    for request in waiting:
        size = request.batch_size
        if count == 0:
            key = request.group_key
        else:
            beyond = total + size > rules.largest_preferred
            # Without a delay, a batch may exceed the largest preferred size: splitting it gains nothing.
            if beyond and not best and (rules.delay_ns or total >= rules.largest_preferred):
                best, why = count, "closed"
            if total + size > rules.max_batch_size or request.group_key != key:
                closed = True
                break
        count += 1
        total += size
        oldest = min(oldest, request.queued)
        if total in rules.preferred:
            best, why = count, "preferred"
        if total >= rules.max_batch_size:
            closed = True
            break
    overdue = now - oldest >= rules.delay_ns > 0
    full = total >= rules.max_batch_size
    if best and not overdue:
        return Run(best, "full" if full and best == count else why)
    if closed or overdue:
        return Run(count, "full" if full else "delay over" if overdue else "closed")
    if total >= rules.largest_preferred:
        return Run(count, "preferred")
    if rules.delay_ns == 0:
        return Run(count, "idle")
    return Wait(oldest + rules.delay_ns)
