"""How much is done in one turn of the loop when many ask at once."""

import asyncio
from functools import partial

import uvloop

from conch.frontends.turns import Turns


def test_many_in_one_turn_are_spread_over_several_in_their_order() -> None:
    seen: list[int] = []
    shares: list[int] = []

    def ask(turns: Turns, number: int) -> None:
        if turns.free():
            seen.append(number)
        else:
            turns.later(partial(seen.append, number))

    async def scenario() -> None:
        turns = Turns()
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
        turns = Turns()
        while turns.free():
            pass
        turns.later(fail)
        turns.later(partial(seen.append, 1))
        while not seen:
            await asyncio.sleep(0)

    uvloop.run(scenario())
    assert seen == [1]
