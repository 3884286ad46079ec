"""The fair order of several tenants' requests: shares by weight, and no gain by sending all at once or one by one."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conch.domain.scheduling.fair_order import FairOrder
from conch.domain.scheduling.waiting import Waiting


def request(tenant: str, weight: int = 1, size: int = 1) -> Waiting:
    made = Waiting(size)
    made.tenant, made.weight = tenant, weight
    return made


def filled(**number_by_tenant: int) -> FairOrder[Waiting]:
    order: FairOrder[Waiting] = FairOrder()
    for tenant, number in number_by_tenant.items():
        for _ in range(number):
            order.add(request(tenant))
    return order


def tenants(requests: list[Waiting]) -> str:
    return "".join(made.tenant for made in requests)


def test_tenants_take_turns_and_each_is_served_in_the_order_of_its_requests() -> None:
    order: FairOrder[Waiting] = FairOrder()
    made = [request("a") for _ in range(4)]
    for waiting in made:
        order.add(waiting)
    order.add(request("b"))
    order.add(request("b"))
    assert tenants(list(order)) == "ababaa"
    assert tenants(order.take(3)) == "aba"
    assert len(order) == 3
    assert [waiting for waiting in order if waiting.tenant == "a"] == made[2:]


@pytest.mark.parametrize(("weights", "expected"), [((1, 1), (50, 50)), ((3, 1), (75, 25)), ((1, 4), (20, 80))])
def test_shares_are_those_of_the_weights(weights: tuple[int, int], expected: tuple[int, int]) -> None:
    order: FairOrder[Waiting] = FairOrder()
    for _ in range(200):
        order.add(request("a", weights[0]))
    for _ in range(100):
        order.add(request("b", weights[1]))
    counts = Counter(tenants(order.take(100)))
    assert (counts["a"], counts["b"]) == expected


def test_large_requests_count_as_what_they_are() -> None:
    order: FairOrder[Waiting] = FairOrder()
    for _ in range(100):
        order.add(request("a", size=16))
        for _ in range(4):
            order.add(request("b", size=1))
    taken = order.take(170)
    assert sum(made.batch_size for made in taken if made.tenant == "a") == 160
    assert sum(made.batch_size for made in taken if made.tenant == "b") == 160


def test_a_tenant_that_sends_one_by_one_gets_no_more_than_its_share() -> None:
    order = filled(flood=1000)
    served = Counter[str]()
    for _ in range(200):
        if not any(made.tenant == "one" for made in order.heads()):
            order.add(request("one"))
        served.update(tenants(order.take(1)))
    assert abs(served["one"] - served["flood"]) <= 1


def test_a_tenant_that_was_idle_does_not_catch_up() -> None:
    order = filled(a=300, b=1)
    order.take(101)
    for _ in range(100):
        order.add(request("b"))
    counts = Counter(tenants(order.take(100)))
    assert abs(counts["a"] - counts["b"]) <= 2


def test_what_was_not_executed_is_served_first_and_charged_once() -> None:
    order = filled(a=3, b=3)
    (first,) = order.take(1)
    before = tenants(list(order))
    order.restore(first)
    assert next(iter(order)) is first
    order.take(1)
    assert tenants(list(order)) == before


def test_the_newest_of_the_largest_tenant_makes_room_for_one_with_less() -> None:
    order = filled(flood=8, some=3)
    newest = [made for made in order if made.tenant == "flood"][-1]
    assert order.evictable("other", 1) is newest
    assert order.evictable("some", 1) is newest
    assert order.evictable("flood", 1) is None
    newest.admitted = True
    assert order.evictable("other", 1) is [made for made in order if made.tenant == "flood"][-2]
    assert filled(a=3, b=2).evictable("b", 1) is None  # it would have as many
    assert filled(a=3, b=2).evictable("b", 2) is not None


def test_how_much_is_served_before_a_new_request() -> None:
    order = filled(flood=100, some=2)
    assert order.before("other", 1) == 0
    assert order.before("some", 1) == 4
    assert order.before("flood", 1) == 102
    assert filled(flood=100).before("flood", 1) == 100


steps = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(1, 3), st.integers(1, 4), st.sampled_from(["add", "take", "remove"])),
    max_size=60,
)


@settings(max_examples=40)
@given(steps)
def test_every_request_is_served_once_in_the_order_that_iterating_shows(
    actions: list[tuple[str, int, int, str]],
) -> None:
    order: FairOrder[Waiting] = FairOrder()
    inside: list[Waiting] = []
    for tenant, weight, size, action in actions:
        if action == "add":
            inside.append(request(tenant, weight, size))
            order.add(inside[-1])
        elif action == "take":
            expected = list(order)[:size]
            assert order.take(size) == expected
            inside = [made for made in inside if made not in expected]
        elif inside:
            gone = inside.pop(size % len(inside))
            assert order.remove(gone)
            assert not order.remove(gone)
        assert len(order) == len(inside)
        assert set(order) == set(inside)
        for name in "abc":
            own = sum(made.batch_size for made in inside if made.tenant == name)
            assert own <= order.before(name, 1) <= sum(made.batch_size for made in inside)
