import threading
from collections.abc import Iterator, Sequence

import pytest

from conch.server.backends.side_by_side import Choice, SideBySide


def nothing() -> None:
    """Parts need nothing."""


def divided(threads: SideBySide) -> SideBySide:
    """Return threads that have run a first batch and are prepared for parts."""
    threads.run(list, list, [1, 2])
    assert threads._prepared is not None
    threads._prepared.result()
    return threads


@pytest.fixture
def three() -> Iterator[SideBySide]:
    threads = divided(SideBySide(3, "m_0", nothing))
    yield threads
    threads.close()


class Model:
    """Doubles numbers, and remembers in which parts it was given them; 0 fails."""

    def __init__(self) -> None:
        self.parts: list[list[int]] = []

    def __call__(self, items: Sequence[int]) -> list[int]:
        self.parts.append(list(items))
        if 0 in items:
            raise ValueError("zero")
        return [2 * item for item in items]


def test_both_ways_are_tried_and_answer_in_the_order_of_the_items(three: SideBySide) -> None:
    model = Model()
    assert three.run(model, model, [1, 2, 3, 4, 5, 6, 7]) == [2, 4, 6, 8, 10, 12, 14]
    assert model.parts == [[1, 2, 3, 4, 5, 6, 7]]
    assert three.run(model, model, [1, 2, 3, 4, 5, 6, 7]) == [2, 4, 6, 8, 10, 12, 14]
    assert sorted(model.parts[1:]) == [[1, 2], [3, 4], [5, 6, 7]]


def test_fewer_items_than_threads_have_a_thread_each(three: SideBySide) -> None:
    model = Model()
    three.run(model, model, [1, 2])
    three.run(model, model, [1, 2])
    assert sorted(model.parts[1:]) == [[1], [2]]


@pytest.mark.parametrize(("threads", "items"), [(1, [1, 2, 3]), (3, [1])])
def test_one_thread_or_one_item_makes_no_parts(threads: int, items: list[int]) -> None:
    model, alone = Model(), SideBySide(threads, "m_0", nothing)
    for _ in range(5):
        alone.run(model, model, items)
    assert model.parts == [items] * 5
    alone.close()


@pytest.mark.parametrize("bad", range(3))
def test_a_failing_part_fails_the_whole_after_the_others_have_ended(three: SideBySide, bad: int) -> None:
    three.run(Model(), Model(), [1, 2, 3])
    ended: list[int] = []
    started = threading.Barrier(3)

    def run(items: Sequence[int]) -> list[int]:
        started.wait()
        if items[0] == bad:
            raise ValueError("bad")
        ended.extend(items)
        return list(items)

    with pytest.raises(ValueError, match="bad"):
        three.run(run, run, [0, 1, 2])
    assert sorted(ended) == [item for item in range(3) if item != bad]


def test_batches_run_whole_until_parts_are_prepared() -> None:
    model, part, ready = Model(), Model(), threading.Event()
    threads = SideBySide(2, "m_0", lambda: assert_set(ready))
    for _ in range(5):
        threads.run(model, part, [1, 2])
    assert (model.parts, part.parts) == ([[1, 2]] * 5, [])
    ready.set()
    assert threads._prepared is not None
    threads._prepared.result()
    for _ in range(2):
        threads.run(model, part, [1, 2])
    assert (len(model.parts), sorted(part.parts)) == (6, [[1], [2]])
    threads.close()


def assert_set(ready: threading.Event) -> None:
    """Wait for an event that is set in time."""
    assert ready.wait(60)


def test_without_what_parts_need_batches_run_whole(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise MemoryError("no memory for a second session")

    model, part = Model(), Model()
    threads = SideBySide(2, "m_0", fail)
    threads.run(model, part, [1, 2])
    assert isinstance(threads._prepared.exception() if threads._prepared else None, MemoryError)
    for _ in range(3):
        threads.run(model, part, [1, 2])
    assert (model.parts, part.parts) == ([[1, 2]] * 4, [])
    assert [record.message for record in caplog.records] == [
        "instance 'm_0': batches are not divided between the cores: no memory for a second session"
    ]
    threads.close()


def test_the_faster_way_is_taken_and_the_other_measured_rarely() -> None:
    choice = Choice()
    taken = []
    for _ in range(1000):
        way = choice.next()
        taken.append(way)
        choice.took(way, 5.0 if way else 10.0)
    assert taken[:10] == [False, True] * 5
    assert 20 <= taken.count(False) <= 30


def test_a_slow_first_time_decides_nothing() -> None:
    choice = Choice()
    for turn in range(100):
        way = choice.next()
        choice.took(way, 100.0 if turn == 0 else 20.0 if way else 10.0)
    assert [choice.next() for _ in range(20)].count(False) >= 19


def test_a_change_of_mind_is_noticed() -> None:
    choice = Choice()
    for _ in range(300):
        way = choice.next()
        choice.took(way, 5.0 if way else 10.0)
    for _ in range(1500):
        way = choice.next()
        choice.took(way, 20.0 if way else 10.0)
    assert [choice.next() for _ in range(20)].count(False) >= 19
