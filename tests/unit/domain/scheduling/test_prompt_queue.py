"""Which prompts an engine is given, and how fast it begins to answer them."""

from conch.domain.scheduling.prompt_queue import PromptQueue, PromptRate
from conch.domain.scheduling.waiting import Waiting

SECOND = 1_000_000_000


def prompt(tokens: int, tenant: str = "") -> Waiting:
    made = Waiting(tokens)
    made.tenant = tenant
    return made


def test_one_long_prompt_at_a_time() -> None:
    queue: PromptQueue[Waiting] = PromptQueue()
    queue.set_context(32_768)
    first, second, short = prompt(5000), prompt(4097), prompt(4096)
    assert queue.passes(first, room=True)
    queue.give(first)
    assert not queue.passes(second, room=True)
    assert queue.passes(short, room=True)
    assert not queue.passes(short, room=False)
    queue.add(second)
    queue.add(short)
    assert queue.before(prompt(1)) == 5000 + 4096
    assert [queue.waits(made) for made in (first, second, short)] == [False, True, True]
    assert queue.next() is short
    assert queue.next() is None
    for _ in range(2):
        queue.done(first)
    assert queue.next() is second
    assert (len(queue), queue.given_tokens) == (0, 0)


def test_what_has_ended_is_not_given() -> None:
    queue: PromptQueue[Waiting] = PromptQueue()
    waiting = [prompt(10, tenant) for tenant in "aab"]
    for made in waiting:
        queue.add(made)
    queue.done(waiting[0])
    assert queue.waiting() == waiting[1:]
    assert queue.evictable("c", 1, 10) is None  # it would have as much
    assert queue.evictable("c", 2, 10) is not None


def test_the_rate_counts_only_the_time_in_which_prompts_wait() -> None:
    rate = PromptRate()
    assert rate.ns_per_token(SECOND) == 0
    rate.arrived(10 * SECOND)
    rate.left(100, 12 * SECOND)
    rate.arrived(50 * SECOND)
    rate.arrived(50 * SECOND)
    rate.left(100, 51 * SECOND)
    rate.left(100, 52 * SECOND)
    assert rate.ns_per_token(52 * SECOND) == 4 * SECOND / 300


def test_a_rate_is_forgotten_when_no_prompt_begins() -> None:
    rate = PromptRate()
    rate.arrived(0)
    rate.left(1, SECOND)
    assert rate.ns_per_token(SECOND) == SECOND
    assert rate.ns_per_token(5 * SECOND) == SECOND
    assert rate.ns_per_token(6 * SECOND) == 0
    rate.arrived(6 * SECOND)
    rate.left(0, 7 * SECOND)  # cancelled: it says nothing
    assert rate.ns_per_token(7 * SECOND) == 0
    rate.arrived(8 * SECOND)
    rate.left(10, 10 * SECOND)
    assert rate.ns_per_token(10 * SECOND) == 3 * SECOND / 10


def test_many_prompts_outweigh_what_was_before() -> None:
    rate = PromptRate()
    rate.arrived(0)
    rate.left(1, SECOND)
    assert rate.ns_per_token(SECOND) == SECOND
    rate.arrived(SECOND)
    rate.left(10, 2 * SECOND)
    assert rate.ns_per_token(2 * SECOND) == SECOND - 0.9 * SECOND / 5
