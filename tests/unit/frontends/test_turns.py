"""How much is done in one turn of the loop when many ask at once."""

import asyncio
import time
from functools import partial

import uvloop

from conch.frontends.loop_budget import LoopBudget, ParseBudget


def test_many_in_one_turn_are_spread_over_several_in_their_order() -> None:
    seen: list[int] = []
    shares: list[int] = []

    def ask(turns: LoopBudget, number: int) -> None:
        if turns.acquire():
            seen.append(number)
        else:
            turns.postpone(partial(seen.append, number))

    async def scenario() -> None:
        turns = LoopBudget()
        for number in range(100):
            ask(turns, number)
        while len(seen) < 100:
            shares.append(len(seen) - sum(shares))
            ask(turns, 100 + len(shares))
            await asyncio.sleep(0)

    uvloop.run(scenario())
    assert max(shares) < 50
    assert seen[:100] == list(range(100))


def test_one_that_fails_keeps_no_other_waiting() -> None:
    seen: list[int] = []

    def fail() -> None:
        raise ValueError("it fails")

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        turns = LoopBudget()
        while turns.acquire():
            pass
        turns.postpone(fail)
        turns.postpone(partial(seen.append, 1))
        while not seen:
            await asyncio.sleep(0)

    uvloop.run(scenario())
    assert seen == [1]


def test_what_is_postponed_is_served_in_later_turns_in_order() -> None:
    seen: list[str] = []

    async def scenario() -> None:
        slices = ParseBudget()

        def slow(name: str, rounds: int) -> None:
            seen.append(name)
            end = time.monotonic() + 0.006
            while time.monotonic() < end:
                pass
            if rounds:
                slices.postpone(partial(slow, name, rounds - 1))

        for name in "abc":
            slices.postpone(partial(slow, name, 1))
        assert seen == []
        turns = 0
        while len(seen) < 6:
            before = len(seen)
            await asyncio.sleep(0)
            assert len(seen) - before <= 2
            turns += 1
        assert turns >= 3

    uvloop.run(scenario())
    assert seen == [*"abcabc"]


def test_one_that_fails_takes_the_turn_of_no_other_that_is_postponed() -> None:
    seen: list[int] = []

    def fail() -> None:
        raise ValueError("it fails")

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        slices = ParseBudget()
        slices.postpone(fail)
        slices.postpone(partial(seen.append, 1))
        while not seen:
            await asyncio.sleep(0)

    uvloop.run(scenario())
    assert seen == [1]
