from conch.server.backends.child.conch_child.python.service import BusyPoll

MAX_POLL_NS = 250_000
SOON, LATE = MAX_POLL_NS - 1, MAX_POLL_NS


def poll_after(wait: int, requests: int, execution: int) -> BusyPoll:
    poll = BusyPoll(MAX_POLL_NS)
    poll.waited(wait)
    poll.executed(requests, execution)
    return poll


def test_a_quick_lone_request_that_came_soon_makes_the_next_one_expected() -> None:
    assert poll_after(SOON, 1, SOON).time == MAX_POLL_NS


def test_nothing_is_expected_at_first_or_after_what_was_rare_or_slow_or_many() -> None:
    assert BusyPoll(MAX_POLL_NS).time == 0
    assert poll_after(LATE, 1, SOON).time == 0
    assert poll_after(SOON, 1, LATE).time == 0
    assert poll_after(SOON, 2, SOON).time == 0


def test_a_wait_in_vain_is_the_last_one() -> None:
    poll = poll_after(SOON, 1, SOON)
    poll.waited(LATE)
    poll.executed(1, SOON)
    assert poll.time == 0


def test_it_can_be_turned_off() -> None:
    poll = BusyPoll(0)
    poll.waited(0)
    poll.executed(1, 0)
    assert poll.time == 0
