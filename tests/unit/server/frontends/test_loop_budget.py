"""Budgets for one turn of the event loop, with more requests than fit in one."""

import asyncio
import time
from functools import partial

import uvloop

from conch.protocols.connections.loop_budget import LoopBudget, ParseBudget


def block(seconds: float) -> None:
    time.sleep(seconds)


def test_many_in_one_turn_are_spread_over_several_in_their_order() -> None:
    seen: list[int] = []
    shares: list[int] = []

    def ask(budget: LoopBudget, number: int) -> None:
        if budget.acquire():
            seen.append(number)
        else:
            budget.postpone(partial(seen.append, number))

    async def scenario() -> None:
        budget = LoopBudget()
        for number in range(100):
            ask(budget, number)
        while len(seen) < 100:
            shares.append(len(seen) - sum(shares))
            ask(budget, 100 + len(shares))
            await asyncio.sleep(0)

    uvloop.run(scenario())
    assert max(shares) < 50
    assert seen[:100] == list(range(100))


def test_requests_of_one_turn_are_bounded_however_long_they_take() -> None:
    async def scenario() -> tuple[int, int]:
        budget = LoopBudget()
        first = 0
        while budget.acquire():
            first += 1
            block(0.002)  # the clock of uvloop moves meanwhile
            assert first < 100
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        second = 0
        while budget.acquire():
            second += 1
        return first, second

    first, second = uvloop.run(scenario())
    assert 32 <= first < 50
    assert 32 <= second < 50


def test_parsing_slows_down_in_a_long_turn_and_recovers_in_the_next() -> None:
    async def scenario() -> tuple[float, float]:
        budget = ParseBudget(slice_s=3600.0, short_slice_s=60.0)
        for _ in range(20):
            budget.until()
        block(0.05)
        late = budget.until() - time.monotonic()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return late, budget.until() - time.monotonic()

    late, next_turn = uvloop.run(scenario())
    assert late <= 60 < next_turn


def test_a_failing_callback_does_not_block_others() -> None:
    seen: list[int] = []

    def fail() -> None:
        raise ValueError("it fails")

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        budget = LoopBudget()
        while budget.acquire():
            pass
        budget.postpone(fail)
        budget.postpone(partial(seen.append, 1))
        while not seen:
            await asyncio.sleep(0)

    uvloop.run(scenario())
    assert seen == [1]


def test_what_is_postponed_is_served_in_later_turns_in_order() -> None:
    seen: list[str] = []

    async def scenario() -> None:
        parse_budget = ParseBudget()

        def slow(name: str, rounds: int) -> None:
            seen.append(name)
            end = time.monotonic() + 0.006
            while time.monotonic() < end:
                pass
            if rounds:
                parse_budget.postpone(partial(slow, name, rounds - 1))

        for name in "abc":
            parse_budget.postpone(partial(slow, name, 1))
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


def test_a_failing_postponed_callback_does_not_block_others() -> None:
    seen: list[int] = []

    def fail() -> None:
        raise ValueError("it fails")

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        parse_budget = ParseBudget()
        parse_budget.postpone(fail)
        parse_budget.postpone(partial(seen.append, 1))
        while not seen:
            await asyncio.sleep(0)

    uvloop.run(scenario())
    assert seen == [1]
