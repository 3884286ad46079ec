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
