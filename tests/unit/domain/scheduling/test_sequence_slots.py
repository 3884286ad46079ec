"""Slots and backlog against a plain model of their rules, under random schedules."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from conch.domain.request import InferRequest
from conch.domain.scheduling.sequence_slots import LiveSequence, SequenceSlots, Slot
from conch.server.core.sequences.sequence import SequenceRequest

IDLE = 50


def submitted(slots: SequenceSlots, key: int, *, end: bool = False, expires: int = 0) -> SequenceRequest:
    """Start or continue a sequence with one more request."""
    sequence = slots.open(key) or slots.start(key)
    request = SequenceRequest(InferRequest("m", []), lambda *_: None, None, sequence)
    slots.add(sequence, request, end=end, expires=expires)
    return request


def ready(slots: SequenceSlots, instance: int = 0) -> list[object]:
    return [sequence.key for sequence in slots.ready[instance]]


def test_sequences_spread_over_the_instances() -> None:
    slots = SequenceSlots(2, 2, IDLE)
    for key in range(1, 5):
        submitted(slots, key)
    slots.fill(0)
    assert [ready(slots, instance) for instance in (0, 1)] == [[1, 3], [2, 4]]


def test_slot_is_reused_after_the_end_of_a_sequence() -> None:
    slots = SequenceSlots(1, 1, IDLE)
    first, second = submitted(slots, 1, end=True), submitted(slots, 2)
    slots.fill(0)
    assert slots.take(first.sequence) is first
    slots.fill(1)
    assert second.sequence.slot is None
    slots.done(first.sequence, 2)
    slots.fill(2)
    assert second.sequence.slot == Slot(0, 0)
    assert ready(slots) == [2]


def test_id_can_be_reused_while_its_ended_sequence_is_executed() -> None:
    slots = SequenceSlots(1, 2, IDLE)
    first = submitted(slots, 1, end=True)
    slots.fill(0)
    slots.take(first.sequence)
    again = submitted(slots, 1)
    assert again.sequence is not first.sequence


def test_a_sequence_with_work_is_not_idle() -> None:
    slots = SequenceSlots(1, 1, IDLE)
    request = submitted(slots, 1)
    slots.fill(0)
    assert slots.next_event() == 0
    slots.take(request.sequence)
    assert slots.idle(10 * IDLE) == []
    slots.done(request.sequence, 100)
    assert slots.next_event() == 100 + IDLE
    assert slots.idle(100 + IDLE) == [request.sequence]


def test_shortest_timeout_counts_in_the_backlog_only() -> None:
    slots = SequenceSlots(1, 1, IDLE)
    submitted(slots, 1, expires=5)
    slots.fill(0)
    waiting = submitted(slots, 2, expires=30)
    submitted(slots, 2, expires=20)
    submitted(slots, 2, expires=25)
    assert slots.next_event() == 20
    assert slots.expired(19) == []
    assert slots.expired(20) == [waiting.sequence]


def test_sequences_that_have_not_begun_return_to_the_head_of_the_backlog() -> None:
    slots = SequenceSlots(2, 1, IDLE)
    begun, unbegun = submitted(slots, 1), submitted(slots, 2)
    slots.fill(0)
    submitted(slots, 3)
    slots.take(begun.sequence)
    slots.done(begun.sequence, 1)
    assert slots.withhold(1) == []
    assert slots.withhold(0) == [begun.sequence]
    assert slots.end(begun.sequence, 2) == []
    slots.fill(2)
    assert len(slots) == 2
    slots.restore(1)
    slots.fill(3)
    assert ready(slots, 1) == [2]
    assert unbegun.sequence.slot == Slot(0, 1)


@dataclass(eq=False)
class PlainSequence:
    key: int
    actual: LiveSequence
    slot: Slot | None = None
    waiting: list[SequenceRequest] = field(default_factory=list)
    executing: bool = False
    open: bool = True
    begun: bool = False
    rested: int = 0

    @property
    def over(self) -> bool:
        return not self.open and not self.waiting and not self.executing


class Plain:
    """The rules again, without optimizations."""

    def __init__(self, instances: int, slots: int) -> None:
        self.slots = sorted(Slot(number, instance) for number in range(slots) for instance in range(instances))
        self.sequences: list[PlainSequence] = []  # in the order in which they get slots
        self.down: set[int] = set()

    def tidy(self, now: int) -> None:
        """Drop ended sequences, and fill free slots."""
        self.sequences = [sequence for sequence in self.sequences if not sequence.over]
        for sequence in self.sequences:
            taken = [other.slot for other in self.sequences]
            free = [slot for slot in self.slots if slot not in taken and slot.instance not in self.down]
            if sequence.slot is None and free:
                sequence.slot = free[0]

    def ready(self, instance: int) -> set[LiveSequence]:
        return {
            sequence.actual
            for sequence in self.sequences
            if sequence.slot and sequence.slot.instance == instance and sequence.waiting and not sequence.executing
        }

    def idle(self, now: int) -> set[LiveSequence]:
        return {
            sequence.actual
            for sequence in self.sequences
            if sequence.slot and not sequence.waiting and not sequence.executing and sequence.rested + IDLE <= now
        }


ACTIONS = ["start", "continue", "end", "take", "done", "abort", "again", "sweep", "withhold", "restore", "wait"]


@settings(max_examples=150)
@given(st.lists(st.sampled_from(ACTIONS), max_size=80), st.integers(1, 3), st.integers(1, 3), st.data())
def test_random_schedules_keep_the_rules(actions: list[str], instances: int, count: int, data: st.DataObject) -> None:
    slots, plain = SequenceSlots(instances, count, IDLE), Plain(instances, count)
    now = 1
    for action in actions:
        live = list(plain.sequences)
        chosen = data.draw(st.sampled_from(live)) if live else None
        if action == "start":
            key = data.draw(st.integers(1, 8))
            if slots.open(key) is None:
                request = submitted(slots, key)
                plain.sequences.append(PlainSequence(key, request.sequence, waiting=[request]))
        elif action in ("continue", "end") and chosen and chosen.open:
            assert slots.open(chosen.key) is chosen.actual
            chosen.waiting.append(submitted(slots, chosen.key, end=action == "end"))
            chosen.open = action == "continue"
        elif action == "take" and chosen and chosen.slot and chosen.waiting and not chosen.executing:
            assert slots.take(chosen.actual) is chosen.waiting.pop(0)
            chosen.executing = True
        elif action == "done" and chosen and chosen.executing:
            slots.done(chosen.actual, now)
            chosen.executing, chosen.begun, chosen.rested = False, True, now
        elif action == "again" and chosen and chosen.executing:
            request = chosen.actual.executing
            assert request is not None
            slots.give_back(chosen.actual, request, now, begun=True)
            chosen.waiting.insert(0, request)
            chosen.executing, chosen.begun = False, True
        elif action == "abort" and chosen:
            assert slots.end(chosen.actual, now) == chosen.waiting
            chosen.waiting, chosen.open = [], False
        elif action == "sweep":
            assert set(slots.idle(now)) == plain.idle(now)
            for sequence in plain.sequences:
                if sequence.actual in plain.idle(now):
                    assert slots.end(sequence.actual, now) == []
                    sequence.open = False
        elif action == "withhold" and len(plain.down) < instances:
            up = [number for number in range(instances) if number not in plain.down]
            instance = data.draw(st.sampled_from(up))
            hit = [sequence for sequence in plain.sequences if sequence.slot and sequence.slot.instance == instance]
            plain.down.add(instance)
            lost = [sequence for sequence in hit if sequence.begun or sequence.executing]
            assert slots.withhold(instance) == [
                sequence.actual for sequence in sorted(lost, key=lambda ended: ended.slot)
            ]
            moved = sorted((sequence for sequence in hit if sequence not in lost), key=lambda moving: moving.slot)
            for sequence in moved:
                sequence.slot = None
            placed = [sequence for sequence in plain.sequences if sequence.slot]
            rest = [sequence for sequence in plain.sequences if not sequence.slot and sequence not in moved]
            plain.sequences = [*placed, *moved, *rest]
            for sequence in lost:
                assert slots.end(sequence.actual, now) == sequence.waiting
                sequence.waiting, sequence.open = [], False
        elif action == "restore" and plain.down:
            instance = data.draw(st.sampled_from(sorted(plain.down)))
            plain.down.remove(instance)
            slots.restore(instance)
        elif action == "wait":
            now += data.draw(st.integers(1, IDLE))
        slots.fill(now)
        plain.tidy(now)
        assert len(slots) == len(plain.sequences)
        assert {sequence.actual: sequence.slot for sequence in plain.sequences} == {slot: slot.slot for slot in slots}
        for instance in range(instances):
            assert set(slots.ready[instance]) == plain.ready(instance)
        for sequence in plain.sequences:
            assert list(sequence.actual.waiting) == sequence.waiting
            assert slots.open(sequence.key) is sequence.actual or not sequence.open


def test_unused_slots_take_no_memory() -> None:
    slots = SequenceSlots(2, 2**31 - 1, IDLE)
    for key in range(1, 6):
        submitted(slots, key)
    slots.fill(0)
    placed = [sequence.slot for sequence in slots]
    assert placed == [Slot(0, 0), Slot(0, 1), Slot(1, 0), Slot(1, 1), Slot(2, 0)]
