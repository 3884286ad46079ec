# Compiled by mypyc in wheels.
"""Slots and backlog of sequences: the rules of Triton's sequence batcher.

Every instance has slots, and a slot holds one sequence from its first request to its end. A sequence without a free
slot waits in the backlog, with all its requests. One request of a sequence is executed at a time. There is no clock, no
instance and no response here: times are passed in, in monotonic nanoseconds, and `end` returns the requests that are
left for the caller to fail.

Which sequences run together: the strategy `oldest` is the dynamic batcher over the first requests of all sequences,
`batching.decide`. The strategy `direct` places each sequence in the batch by its slot and fills slots
without a request.
"""

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from conch.domain.model_config import ModelConfig, SequenceBatching
from conch.domain.scheduling.batching import BatchRules, Run, Wait
from conch.domain.scheduling.waiting import Waiting
from conch.domain.tensor import Tensor

W = TypeVar("W", bound=Waiting)


# The client's id; for requests to iterative models a tuple, which no client can send.
Key: TypeAlias = int | str | tuple[int]


class Slot(NamedTuple):
    """A slot of an instance. Low numbers are taken first, so that sequences spread over the instances."""

    number: int
    instance: int


class LiveSequence(Generic[W]):
    """One sequence, from a request with START to its end, with END or otherwise."""

    __slots__ = ("begun", "executing", "expires", "idle_since", "key", "open", "slot", "states", "waiting")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.slot: Slot | None = None
        self.waiting: deque[W] = deque()
        self.executing: W | None = None
        self.open = True  # more requests may come: it has not ended, with END or otherwise
        self.begun = False  # an instance has executed one of its requests
        self.idle_since = 0  # when it became idle, monotonic ns
        self.expires = 0  # deadline of its wait for a slot, monotonic ns; 0: none
        self.states: list[Tensor] = []  # implicit state: inputs of its next request

    def __repr__(self) -> str:
        return f"<LiveSequence {self.key!r} {self.slot} {len(self.waiting)} waiting>"


class SequenceSlots(Generic[W]):
    """The sequences of one model. `ready` has, by instance, those whose next request can be executed, in order."""

    def __init__(self, instances: int, slots_per_instance: int, idle_ns: int) -> None:
        self.ready: list[dict[LiveSequence[W], None]] = [{} for _ in range(instances)]
        self._idle_ns = idle_ns
        self._open: dict[Key, LiveSequence[W]] = {}
        self._backlog: dict[LiveSequence[W], None] = {}
        self._holders: dict[Slot, LiveSequence[W]] = {}
        # The slots of an instance are made one after the other as they are needed: there may be billions.
        self._free = [Slot(0, instance) for instance in range(instances)]
        self._made = [1] * instances
        self._slots_per_instance = slots_per_instance
        self._withheld: dict[int, list[Slot]] = {}  # free slots of instances that are down
        self._idle: dict[LiveSequence[W], None] = {}  # by the time that they became idle
        self._expiries: list[tuple[int, int, LiveSequence[W]]] = []
        self._order = count()

    def __repr__(self) -> str:
        return f"<SequenceSlots {len(self._holders)} placed, {len(self._backlog)} in the backlog>"

    def __len__(self) -> int:
        """Return how many sequences have not ended."""
        return len(self._holders) + len(self._backlog)

    def __iter__(self) -> Iterator[LiveSequence[W]]:
        """Iterate over the sequences that have not ended, those in the backlog last."""
        return iter([*self._holders.values(), *self._backlog])

    def open(self, key: Key) -> LiveSequence[W] | None:
        """Return the open sequence of that key, None if there is none."""
        return self._open.get(key)

    def start(self, key: Key) -> LiveSequence[W]:
        """Begin a sequence; it waits for a slot."""
        sequence = self._open[key] = LiveSequence(key)
        self._backlog[sequence] = None
        return sequence

    def add(self, sequence: LiveSequence[W], request: W, *, end: bool, expires: int = 0) -> None:
        """Add a request to a sequence, which is open. With `end` it is the last one.

        `expires` is the deadline of the wait for a slot.
        """
        sequence.waiting.append(request)
        if end:
            self._close(sequence)
        if sequence.slot is None:
            if expires and not 0 < sequence.expires <= expires:
                sequence.expires = expires
                heapq.heappush(self._expiries, (expires, next(self._order), sequence))
        elif sequence.executing is None:
            self._idle.pop(sequence, None)
            self.ready[sequence.slot.instance][sequence] = None

    def fill(self, now: int) -> None:
        """Assign free slots to the sequences of the backlog, in order."""
        while self._free and self._backlog:
            slot = self._take_slot()
            sequence = next(iter(self._backlog))
            del self._backlog[sequence]
            sequence.slot = slot
            self._holders[slot] = sequence
            self._update(sequence, now)

    def _take_slot(self) -> Slot:
        """Remove and return the first free slot. If it is the last one made for its instance, make the next one."""
        slot = heapq.heappop(self._free)
        if slot.number == self._made[slot.instance] - 1 and slot.number < self._slots_per_instance - 1:
            self._made[slot.instance] += 1
            heapq.heappush(self._free, Slot(slot.number + 1, slot.instance))
        return slot

    def take(self, sequence: LiveSequence[W]) -> W:
        """Remove and return the next request of a ready sequence, for execution."""
        assert sequence.slot is not None
        del self.ready[sequence.slot.instance][sequence]
        request = sequence.executing = sequence.waiting.popleft()
        return request

    def done(self, sequence: LiveSequence[W], now: int) -> None:
        """Continue a sequence after the execution of the request that was taken."""
        sequence.executing = None
        sequence.begun = True
        self._update(sequence, now)

    def give_back(self, sequence: LiveSequence[W], request: W, now: int, *, begun: bool) -> None:
        """Put a request that was taken back to the head of a sequence, executed or not."""
        sequence.waiting.appendleft(request)
        sequence.executing = None
        sequence.begun |= begun
        self._update(sequence, now)

    def end(self, sequence: LiveSequence[W], now: int) -> list[W]:
        """End a sequence in any state and return the requests that waited in it.

        Its slot is free at once, or after `done` for the request that is being executed.
        """
        self._close(sequence)
        self._backlog.pop(sequence, None)
        left = list(sequence.waiting)
        sequence.waiting.clear()
        if sequence.slot is not None and sequence.executing is None:
            self._update(sequence, now)
        return left

    def expire_idle_now(self) -> None:
        """Expire idle sequences at once from now on: no more requests can come."""
        self._idle_ns = 0

    def idle(self, now: int) -> list[LiveSequence[W]]:
        """Return the sequences that have been idle for too long, for the caller to end."""
        idle = []
        for sequence in self._idle:
            if sequence.idle_since + self._idle_ns > now:
                break
            idle.append(sequence)
        return idle

    def expired(self, now: int) -> list[LiveSequence[W]]:
        """Return the sequences that have waited too long for a slot, for the caller to end."""
        expired: dict[LiveSequence[W], None] = {}
        while self._expiries and self._expiries[0][0] <= now:
            sequence = heapq.heappop(self._expiries)[2]
            if sequence in self._backlog:
                expired[sequence] = None
        return list(expired)

    def next_event(self) -> int:
        """Return when `idle` or `expired` will find a sequence; 0 if never."""
        while self._expiries and self._expiries[0][2] not in self._backlog:
            heapq.heappop(self._expiries)
        expiry = self._expiries[0][0] if self._expiries else 0
        first = next(iter(self._idle), None)
        if first is None:
            return expiry
        idle = first.idle_since + self._idle_ns
        return min(expiry, idle) if expiry else idle

    def withhold(self, instance: int) -> list[LiveSequence[W]]:
        """Withhold the slots of an instance and return the sequences that have begun there, for the caller to end.

        Those that have not begun return to the head of the backlog.
        """
        self._withheld[instance] = [slot for slot in self._free if slot.instance == instance]
        self._free = [slot for slot in self._free if slot.instance != instance]
        heapq.heapify(self._free)
        placed = [sequence for slot, sequence in sorted(self._holders.items()) if slot.instance == instance]
        unbegun = [sequence for sequence in placed if not sequence.begun and sequence.executing is None]
        for sequence in unbegun:
            self.ready[instance].pop(sequence, None)
            self._release(sequence)
        self._backlog = dict.fromkeys([*unbegun, *self._backlog])
        return [sequence for sequence in placed if sequence.slot is not None]

    def restore(self, instance: int) -> None:
        """Free the slots of an instance that has recovered."""
        for slot in self._withheld.pop(instance, ()):
            heapq.heappush(self._free, slot)

    def _update(self, sequence: LiveSequence[W], now: int) -> None:
        """Mark a sequence that has a slot and executes nothing as ready or idle, or release its slot."""
        assert sequence.slot is not None
        ready = self.ready[sequence.slot.instance]
        if sequence.waiting:
            sequence.waiting[0].queued = now
            ready[sequence] = None
            return
        ready.pop(sequence, None)
        if sequence.open:
            sequence.idle_since = now
            self._idle[sequence] = None
        else:
            self._release(sequence)

    def _close(self, sequence: LiveSequence[W]) -> None:
        sequence.open = False
        self._idle.pop(sequence, None)
        if self._open.get(sequence.key) is sequence:
            del self._open[sequence.key]

    def _release(self, sequence: LiveSequence[W]) -> None:
        slot = sequence.slot
        assert slot is not None
        sequence.slot = None
        del self._holders[slot]
        if slot.instance in self._withheld:
            self._withheld[slot.instance].append(slot)
        else:
            heapq.heappush(self._free, slot)


@dataclass(frozen=True, slots=True)
class DirectRules:
    """The settings of the strategy `direct`. A batch runs once `min_ready` slots are ready, or after the delay."""

    slots: int
    min_ready: float
    delay_ns: int

    @classmethod
    def of(cls, config: ModelConfig, batching: SequenceBatching) -> "DirectRules":
        """Derive the rules of a configuration."""
        slots = max(config.max_batch_size, 1)
        return cls(slots, batching.minimum_slot_utilization * slots, batching.max_queue_delay_us * 1000)


def oldest_rules(config: ModelConfig, batching: SequenceBatching) -> BatchRules:
    """Return the rules of the strategy `oldest` for `batching.decide`."""
    largest = max(config.max_batch_size, 1)
    preferred = frozenset(batching.preferred_batch_sizes) or frozenset({largest})
    delay_ns = batching.max_queue_delay_us * 1000
    single = config.max_batch_size == 0
    return BatchRules(largest, preferred, delay_ns, single=single, largest_preferred=max(preferred))


def decide_direct(ready: Sequence[Waiting], rules: DirectRules, now: int) -> Run | Wait:
    """Run all of the next requests of an instance's sequences, of which there is at least one, or wait."""
    if rules.delay_ns == 0 or len(ready) >= rules.min_ready:
        return Run(len(ready), "sequence")
    due = min(request.queued for request in ready) + rules.delay_ns
    return Run(len(ready), "sequence") if due <= now else Wait(due)


def slot_batch(ready: Sequence[LiveSequence[W]]) -> list[LiveSequence[W] | None]:
    """Return a batch of the strategy `direct`: by slot, the sequence or None.

    Sequences whose group key differs from that of the first slot stay ready for the next batch.
    """
    by_slot: dict[int, LiveSequence[W]] = {}
    for sequence in ready:
        assert sequence.slot is not None
        by_slot[sequence.slot.number] = sequence
    key = by_slot[min(by_slot)].waiting[0].group_key
    chosen = {number: sequence for number, sequence in by_slot.items() if sequence.waiting[0].group_key == key}
    return [chosen.get(number) for number in range(max(chosen) + 1)]
