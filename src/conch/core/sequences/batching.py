"""Which sequences run together, and when: pure functions of those that are ready and of the clock.

Oldest is the dynamic batcher over the first requests of all sequences: `batching.decide`. Direct gives every sequence
a place of its own in the batch, its slot, and fills the places between with requests that are not ready.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from conch.core.scheduling.batching import BatchRules, Run, Wait, Waiting
from conch.core.sequences.sequence import LiveSequence
from conch.model_config import ModelConfig, SequenceBatching


@dataclass(frozen=True, slots=True)
class DirectRules:
    """The settings of the direct strategy. A batch is worth running if so many slots are ready, or after the delay."""

    slots: int
    least_ready: float
    delay_ns: int

    @classmethod
    def of(cls, config: ModelConfig, batching: SequenceBatching) -> "DirectRules":
        """Derive the rules of a configuration."""
        slots = max(config.max_batch_size, 1)
        return cls(slots, batching.minimum_slot_utilization * slots, batching.max_queue_delay_us * 1000)


def oldest_rules(config: ModelConfig, batching: SequenceBatching) -> BatchRules:
    """Return what `batching.decide` needs to know about the oldest strategy."""
    largest = max(config.max_batch_size, 1)
    preferred = frozenset(batching.preferred_batch_sizes) or frozenset({largest})
    delay_ns = batching.max_queue_delay_us * 1000
    single = config.max_batch_size == 0
    return BatchRules(largest, preferred, delay_ns, single=single, largest_preferred=max(preferred))


def decide_direct(ready: Sequence[Waiting], rules: DirectRules, now: int) -> Run | Wait:
    """Decide over the next requests of an instance's sequences, at least one: all of them, or none yet."""
    if rules.delay_ns == 0 or len(ready) >= rules.least_ready:
        return Run(len(ready))
    due = min(request.queued for request in ready) + rules.delay_ns
    return Run(len(ready)) if due <= now else Wait(due)


def places(ready: Sequence[LiveSequence]) -> list[LiveSequence | None]:
    """Return a batch of the direct strategy: at the place of its slot each sequence that can share it, else None.

    Those can share it that are alike the one in the first slot. The others are ready for the batch after it.
    """
    by_slot: dict[int, LiveSequence] = {}
    for sequence in ready:
        assert sequence.slot is not None
        by_slot[sequence.slot.number] = sequence
    key = by_slot[min(by_slot)].waiting[0].group_key
    chosen = {number: sequence for number, sequence in by_slot.items() if sequence.waiting[0].group_key == key}
    return [chosen.get(number) for number in range(max(chosen) + 1)]
