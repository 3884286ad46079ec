"""The policy queue: order of service, bounds, timeouts."""

import pytest

from conch.base.errors import QueueFull
from conch.domain.model_config import DynamicBatching, QueuePolicy, TimeoutAction
from conch.domain.request import StepRequest
from conch.domain.scheduling.queue import PolicyQueue, ServiceRate
from conch.domain.scheduling.waiting import State
from conch.server.core.pending import Pending
from tests.unit.server.core.scripted import Caller, request

US = 1000
SECOND = 1_000_000_000


class Books:
    """An owner that takes what ends out of the queue."""

    def __init__(self, queue: PolicyQueue) -> None:
        self.queue = queue

    def settled(self, pending: Pending, _answer: object, _was: object) -> None:
        self.queue.remove(pending)


def pushed(queue: PolicyQueue, id: str, now: int = 0, **fields: int) -> Pending:
    pending = Pending(request(id=id, **fields), Caller(), Books(queue))
    sent = pending.request
    queue.push(pending, now, priority=sent.priority, timeout_us=sent.timeout_us)
    return pending


def ids(queue: PolicyQueue) -> str:
    return "".join(pending.request.id for pending in queue)


def test_queue_without_a_policy_has_the_server_bound() -> None:
    queue = PolicyQueue(None, 2)
    pushed(queue, "a")
    assert queue.refusal(0) is None
    pushed(queue, "b")
    assert queue.refusal(0) is not None
    with pytest.raises(QueueFull):
        pushed(queue, "c")
    assert ids(queue) == "ab"


def test_configured_bound_overrides_the_server_bound() -> None:
    queue = PolicyQueue(DynamicBatching(default_queue_policy=QueuePolicy(max_queue_size=3)), 1)
    for id in "abc":
        pushed(queue, id)
    with pytest.raises(QueueFull):
        pushed(queue, "d")


def test_no_early_rejection_while_one_level_has_room() -> None:
    queue = PolicyQueue(DynamicBatching(priority_levels=2, default_priority_level=1), 1)
    pushed(queue, "a", priority=1)
    assert queue.refusal(0) is None
    pushed(queue, "b", priority=2)
    assert queue.refusal(0) is not None


def test_steps_of_admitted_requests_are_not_rejected() -> None:
    queue = PolicyQueue(None, 1)
    pushed(queue, "a")
    sent = StepRequest("m", [], id="b")
    queue.push(Pending(sent, Caller(), Books(queue)), 0, admitted=sent.admitted)
    assert ids(queue) == "ab"


def test_rejection_estimates_the_wait() -> None:
    queue = PolicyQueue(None, 100)
    now = 50 * SECOND
    for _ in range(100):
        pushed(queue, "x", now).queued = now
    refusal = queue.refusal(now + SECOND)
    assert refusal is not None
    assert refusal.retry_after_s == 1  # nothing is known yet but that the oldest has waited that long
    for second in range(1, 5):
        for _ in range(20):
            queue.pop(1)
            pushed(queue, "y").queued = now + second * SECOND
        refusal = queue.refusal(now + (second + 1) * SECOND)
        assert refusal is not None
        assert refusal.retry_after_s == 5  # 100 at 20 a second
    refusal = queue.refusal(now + 9 * SECOND)
    assert refusal is not None
    assert refusal.retry_after_s == 9 - 0  # none was served for a while, and the oldest is from the beginning


def test_service_rate_restarts_after_a_gap() -> None:
    pace = ServiceRate()
    assert pace.seconds_for(1, 0) is None
    pace.taken = 100
    assert pace.seconds_for(100, SECOND) == 1
    assert pace.seconds_for(100, 3600 * SECOND) is None


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


def test_requests_like_the_first_are_taken_from_the_middle() -> None:
    queue = PolicyQueue(DynamicBatching(priority_levels=2, default_priority_level=2))
    for id in "abcde":
        pushed(queue, id).group_key = id in "ace"
    urgent = pushed(queue, "f", priority=1)
    urgent.group_key = True
    assert queue.like_first(9) == [urgent]  # others of its level only
    queue.take([urgent])
    assert [pending.request.id for pending in queue.like_first(4)] == ["a", "c"]
    queue.take(queue.like_first(9)[:2])
    assert (ids(queue), len(queue)) == ("bde", 3)


def test_full_level_rejects_and_others_do_not() -> None:
    policies = {1: QueuePolicy(max_queue_size=1)}
    queue = PolicyQueue(DynamicBatching(priority_levels=2, default_priority_level=2, priority_queue_policies=policies))
    pushed(queue, "a", priority=1)
    with pytest.raises(QueueFull, match=r"^\[request id: <id_unknown>\] Exceeds maximum queue size$"):
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
    ("default", "override", "sent", "expires"),
    [(0, False, 9, 0), (0, True, 9, 9), (5, True, 9, 5), (5, True, 3, 3), (5, False, 3, 5), (5, True, 0, 5)],
)
def test_timeout_of_a_request_only_shortens_that_of_the_policy(
    default: int, override: bool, sent: int, expires: int
) -> None:
    policy = QueuePolicy(default_timeout_us=default, allow_timeout_override=override)
    queue = PolicyQueue(DynamicBatching(default_queue_policy=policy))
    assert pushed(queue, "a", timeout_us=sent).expires == expires * US


def test_expiries_of_served_requests_are_dropped() -> None:
    queue = PolicyQueue(DynamicBatching(default_queue_policy=QueuePolicy(default_timeout_us=10**9)))
    for _ in range(1000):
        pushed(queue, "a")
        queue.pop(1)[0].finish(None)
    assert len(queue._expiries) < 200


def test_unused_levels_take_no_memory() -> None:
    levels = 2**64 - 1
    queue = PolicyQueue(DynamicBatching(priority_levels=levels, default_priority_level=5), 1)
    pushed(queue, "d", priority=levels)
    pushed(queue, "b")
    pushed(queue, "a", priority=2)
    pushed(queue, "c", priority=1000)
    assert ids(queue) == "abcd"
    assert queue.refusal(0) is None
    with pytest.raises(QueueFull):
        pushed(queue, "e", priority=2)
    assert [pending.request.id for pending in queue.pop(3)] == ["a", "b", "c"]
    assert ids(queue) == "d"


def test_empty_levels_are_dropped() -> None:
    queue = PolicyQueue(DynamicBatching(priority_levels=2**63, default_priority_level=1))
    waiting = pushed(queue, "z", priority=2**62)
    for level in range(1, 5_000):
        pushed(queue, "a", priority=level)
        queue.pop(1)
    assert len(queue._in_use) < 200
    queue.requeue(pushed_out := queue.pop(1)[0])
    assert pushed_out is waiting
    assert ids(queue) == "z"


# ── tenants ──


def of_tenant(queue: PolicyQueue, tenant: str, id: str = "", weight: int = 1, **fields: int) -> Pending:
    pending = Pending(request(id=id or tenant, **fields), Caller(), Books(queue))
    pending.tenant, pending.weight = tenant, weight
    evicted = queue.push(pending, 0, priority=pending.request.priority, timeout_us=pending.request.timeout_us)
    if evicted is not None:
        evicted.finish(queue.rejection(0))
    return pending


def test_tenants_take_turns_within_a_priority_level() -> None:
    queue = PolicyQueue(DynamicBatching(priority_levels=2, default_priority_level=2))
    for tenant in "aaabb":
        of_tenant(queue, tenant)
    for tenant in "cd":
        of_tenant(queue, tenant, priority=1)
    assert ids(queue) == "cdababa"
    assert [queue.before(2, tenant, 1) for tenant in "abe"] == [7, 6, 2]
    assert "".join(pending.request.id for pending in queue.pop(5)) == "cdaba"
    assert ids(queue) == "ba"
    queue.pop(2)
    assert (len(queue), queue.oldest()) == (0, 0)
    of_tenant(queue, "a")
    assert ids(queue) == "a"


def test_a_full_queue_makes_room_for_a_tenant_with_less_than_its_share() -> None:
    queue = PolicyQueue(None, 6)
    flood = [of_tenant(queue, "a") for _ in range(6)]
    with pytest.raises(QueueFull):
        of_tenant(queue, "a")
    assert queue.refusal(0, "a") is not None
    assert queue.refusal(0, "b") is None
    for _ in range(3):
        of_tenant(queue, "b")
    assert [pending.state is State.DONE for pending in flood] == [False] * 3 + [True] * 3
    assert ids(queue) == "ababab"
    for tenant in "ab":
        with pytest.raises(QueueFull):
            of_tenant(queue, tenant)
        assert queue.refusal(0, tenant) is not None
    of_tenant(queue, "b", weight=3)
    assert ids(queue).count("b") == 4


def test_a_request_that_is_delayed_leaves_the_fair_order() -> None:
    policy = QueuePolicy(timeout_action=TimeoutAction.DELAY, default_timeout_us=10)
    queue = PolicyQueue(DynamicBatching(default_queue_policy=policy))
    for tenant in "abc":
        of_tenant(queue, tenant)
    assert queue.expire(10 * US) == []
    assert (len(queue), ids(queue)) == (3, "abc")
    queue.requeue(queue.pop(1)[0])
    assert ids(queue) == "abc"
    assert queue.before(0, "d", 1) == 0  # the delayed ones are served last


def test_a_deadline_rejects_what_waits_and_what_was_sent_ahead() -> None:
    queue = PolicyQueue(None)
    waiting, ahead, begun = (Pending(request(id=id), Caller(), Books(queue)) for id in "wab")
    for pending in (begun, ahead, waiting):
        pending.starts_by = 10
        queue.push(pending, 0)
    taken = queue.pop(2)
    queue.note_ahead(taken)
    for pending in taken:
        pending.state = State.EXECUTING
    queue.begin(begun)
    assert queue.next_expiry() == 10
    assert queue.next_start_by() in (0, 10)
    assert queue.expire(9) == []
    assert sorted(pending.request.id for pending in queue.expire(10)) == ["a", "w"]
