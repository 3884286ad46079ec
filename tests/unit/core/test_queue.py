"""The policy queue: order of service, bounds, time-outs."""

import pytest

from conch.core.pending import Pending
from conch.core.queue import PolicyQueue
from conch.errors import QueueFull
from conch.model_config import DynamicBatching, QueuePolicy, TimeoutAction
from tests.unit.core.scripted import Caller, request

US = 1000


class Books:
    """An owner that takes what ends out of the queue."""

    def __init__(self, queue: PolicyQueue) -> None:
        self.queue = queue

    def settled(self, pending: Pending, _answer: object, _was: object) -> None:
        self.queue.remove(pending)


def pushed(queue: PolicyQueue, id: str, now: int = 0, **fields: int) -> Pending:
    pending = Pending(request(id=id, **fields), Caller(), Books(queue))
    queue.push(pending, now)
    return pending


def ids(queue: PolicyQueue) -> str:
    return "".join(pending.request.id for pending in queue)


def test_one_level_is_first_in_first_out() -> None:
    queue = PolicyQueue(None)
    for id in "abc":
        pushed(queue, id)
    assert [p.request.id for p in queue.pop(2)] == ["a", "b"]
    assert (len(queue), ids(queue)) == (1, "c")


def test_priority_one_is_served_first_and_unknown_priorities_get_the_default() -> None:
    queue = PolicyQueue(DynamicBatching(priority_levels=3, default_priority_level=2))
    for id, priority in (("c", 3), ("x", 0), ("a", 1), ("y", 9), ("b", 2)):
        pushed(queue, id, priority=priority)
    assert ids(queue) == "axybc"


def test_a_full_level_refuses_and_others_do_not() -> None:
    policies = {1: QueuePolicy(max_queue_size=1)}
    queue = PolicyQueue(DynamicBatching(priority_levels=2, default_priority_level=2, priority_queue_policies=policies))
    pushed(queue, "a", priority=1)
    with pytest.raises(QueueFull, match="Exceeds maximum queue size"):
        pushed(queue, "b", priority=1)
    pushed(queue, "c", priority=2)
    assert ids(queue) == "ac"


def test_expired_requests_are_returned_for_rejection() -> None:
    queue = PolicyQueue(DynamicBatching(default_queue_policy=QueuePolicy(default_timeout_us=5)))
    first = pushed(queue, "a", 0)
    pushed(queue, "b", 3 * US)
    assert queue.next_expiry() == 5 * US
    assert queue.expire(5 * US - 1) == []
    assert queue.expire(5 * US) == [first]
    first.finish(None)
    assert ids(queue) == "b"
    assert queue.next_expiry() == 8 * US


def test_delayed_requests_are_served_after_those_in_time() -> None:
    policy = QueuePolicy(TimeoutAction.DELAY, default_timeout_us=5)
    queue = PolicyQueue(DynamicBatching(default_queue_policy=policy))
    pushed(queue, "a", 0)
    assert queue.expire(5 * US) == []
    pushed(queue, "b", 6 * US)
    assert [p.request.id for p in queue.pop(2)] == ["b", "a"]
    assert len(queue) == 0


@pytest.mark.parametrize(
    ("default", "override", "asked", "expires"),
    [(0, False, 9, 0), (0, True, 9, 9), (5, True, 9, 5), (5, True, 3, 3), (5, False, 3, 5), (5, True, 0, 5)],
)
def test_a_request_may_shorten_its_time_where_the_policy_lets_it(
    default: int, override: bool, asked: int, expires: int
) -> None:
    policy = QueuePolicy(default_timeout_us=default, allow_timeout_override=override)
    queue = PolicyQueue(DynamicBatching(default_queue_policy=policy))
    assert pushed(queue, "a", timeout_us=asked).expires == expires * US


def test_expiries_of_requests_long_served_do_not_pile_up() -> None:
    queue = PolicyQueue(DynamicBatching(default_queue_policy=QueuePolicy(default_timeout_us=10**9)))
    for _ in range(1000):
        pushed(queue, "a")
        queue.pop(1)[0].finish(None)
    assert len(queue._expiries) < 200
