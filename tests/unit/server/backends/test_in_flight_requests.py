"""The pipeline to a model's process, and busy polling for its answer."""

import asyncio

from conch.server.backends.python.in_flight_requests import LoopBusyPoll, PipelineDepth

HOUR_NS = 3600 * 10**9
US = 1_000
MS = 1_000_000


def measured(*executions_ns: int) -> PipelineDepth:
    pace = PipelineDepth()
    for execution in executions_ns:
        pace.measured(execution)
    return pace


def test_nothing_is_sent_ahead_to_a_process_that_was_never_measured() -> None:
    assert [PipelineDepth().depth(0, crowded=crowded) for crowded in (False, True)] == [0, 0]


def test_one_fast_execution_does_not_make_a_fast_model() -> None:
    assert measured(10 * US).depth(0, crowded=True) == 0


def test_a_fast_model_gets_several_batches_and_a_short_one_gets_one_when_it_is_crowded() -> None:
    fast, short, slow = (measured(*[time] * 60) for time in (50 * US, 2 * MS, 50 * MS))
    assert [pace.depth(0, crowded=False) for pace in (fast, short, slow)] == [4, 0, 0]
    assert [pace.depth(0, crowded=True) for pace in (fast, short, slow)] == [4, 1, 0]


def test_nothing_is_sent_behind_an_execution_that_takes_unusually_long() -> None:
    fast = measured(*[50 * US] * 60)
    assert fast.depth(9 * MS, crowded=False) == 4
    assert [fast.depth(10 * MS, crowded=crowded) for crowded in (False, True)] == [0, 0]


def test_a_model_that_has_become_slow_is_not_fast_any_more() -> None:
    assert measured(*[50 * US] * 60, 100 * MS).depth(0, crowded=True) == 0


class Loop:
    """Counts the turns that it is asked for."""

    def __init__(self) -> None:
        self.due: list[object] = []

    def call_soon(self, callback: object) -> None:
        self.due.append(callback)

    def turn(self) -> None:
        due, self.due = self.due, []
        for callback in due:
            callback()  # type: ignore[operator]


def awake(limit: int = HOUR_NS) -> tuple[Loop, LoopBusyPoll]:
    loop = Loop()
    return loop, LoopBusyPoll(loop, limit)  # type: ignore[arg-type]


def test_it_looks_for_the_answer_of_a_lone_request_after_a_quick_one() -> None:
    loop, process = awake()
    process.sent(1)
    assert not loop.due  # nothing is known of the model
    process.answered()
    process.sent(1)
    for _ in range(5):
        assert len(loop.due) == 1
        loop.turn()
    process.answered()
    loop.turn()
    assert not loop.due


def test_it_looks_once_however_many_are_sent() -> None:
    loop, process = awake()
    process.sent(1)
    process.answered()
    process.sent(1)
    process.sent(1)
    assert len(loop.due) == 1


def test_many_requests_and_slow_answers_are_not_waited_for_awake() -> None:
    loop, process = awake()
    process.sent(1)
    process.answered()
    process.sent(16)
    assert not loop.due
    loop, process = awake(limit=0)
    process.sent(1)
    process.answered()
    process.sent(1)
    assert not loop.due


async def test_it_ends_with_the_time() -> None:
    loop = asyncio.get_running_loop()
    process = LoopBusyPoll(loop, 2_000_000)
    process.sent(1)
    process.answered()
    process.sent(1)
    assert process._polling
    while process._polling:
        await asyncio.sleep(0)
