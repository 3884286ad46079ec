"""Busy polling for the answer of a model's process."""

import asyncio

from conch.server.backends.python.in_flight_requests import LoopBusyPoll

HOUR_NS = 3600 * 10**9


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
