"""The batching decision for sequences, pure functions of those that are ready and of the clock.

The strategy `oldest` is the dynamic batcher over the first requests of all sequences: `scheduling.batching.decide`. The
strategy `direct` slot_batch each sequence in the batch by its slot, and fills slots without a request.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from conch.domain.model_config import ModelConfig, SequenceBatching
from conch.server.core.scheduling.batching import BatchRules, Run, Wait, Waiting
from conch.server.core.sequences.sequence import LiveSequence


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
    """Return the rules of the strategy `oldest` for `scheduling.batching.decide`."""
    largest = max(config.max_batch_size, 1)
    preferred = frozenset(batching.preferred_batch_sizes) or frozenset({largest})
    delay_ns = batching.max_queue_delay_us * 1000
    single = config.max_batch_size == 0
    return BatchRules(largest, preferred, delay_ns, single=single, largest_preferred=max(preferred))


def decide_direct(ready: Sequence[Waiting], rules: DirectRules, now: int) -> Run | Wait:
    """Run all of the next requests of an instance's sequences, of which there is at least one, or wait."""
    if rules.delay_ns == 0 or len(ready) >= rules.min_ready:
        return Run(len(ready))
    due = min(request.queued for request in ready) + rules.delay_ns
    return Run(len(ready)) if due <= now else Wait(due)


def slot_batch(ready: Sequence[LiveSequence]) -> list[LiveSequence | None]:
    """Return a batch of the strategy `direct`: by slot, the sequence or None.

    Sequences whose group key differs from that of the first slot stay ready for the next batch.
    """
    by_slot: dict[int, LiveSequence] = {}
    for sequence in ready:
        assert sequence.slot is not None
        by_slot[sequence.slot.number] = sequence
    key = by_slot[min(by_slot)].waiting[0].group_key
    chosen = {number: sequence for number, sequence in by_slot.items() if sequence.waiting[0].group_key == key}
    return [chosen.get(number) for number in range(max(chosen) + 1)]
