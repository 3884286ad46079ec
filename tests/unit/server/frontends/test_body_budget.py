"""The memory for request bodies: what is charged, for how long, and who has to go."""

import gc
import threading

import numpy as np
import pytest

from conch.protocols.connections import body_budget
from conch.protocols.connections.body_budget import BodyBudget, BodyUpload


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 100.0

        def monotonic(self) -> float:
            return self.now

    clock = Clock()
    monkeypatch.setattr(body_budget, "time", clock)
    return clock


def begun(budget: BodyBudget, size: int) -> tuple[BodyUpload, list[BodyUpload]]:
    """Begin an upload; the list has it once it is evicted."""
    evicted: list[BodyUpload] = []
    upload = budget.upload(lambda: evicted.append(upload))
    assert upload.grow(size)
    return upload, evicted


def test_what_is_taken_is_given_back():
    budget = BodyBudget(100)
    assert budget.charge(60)
    assert not budget.charge(41)
    assert budget.charge(40)
    budget.discharge(100)
    assert (budget.used_bytes, budget.refused) == (0, 1)


def test_a_large_body_is_charged_until_it_is_freed():
    budget = BodyBudget(10**6)
    upload, _ = begun(budget, 100_000)
    body = upload.finish(np.empty(100_000, np.uint8).data)
    tensor = np.frombuffer(body[1000:], np.float32)
    del body
    assert budget.used_bytes == 100_000
    upload.release()
    assert budget.used_bytes == 100_000
    del tensor
    assert budget.used_bytes == 0


def test_a_body_that_grew_and_one_that_came_at_once():
    budget = BodyBudget(10**6)
    upload, _ = begun(budget, 70_000)
    body = upload.finish(bytearray(b"x" * 70_000))
    kept = budget.charge_until_freed(b"y" * 10_000)
    assert kept is not None
    assert (bytes(body), bytes(kept)) == (b"x" * 70_000, b"y" * 10_000)
    assert budget.used_bytes == 80_000
    assert budget.charge_until_freed(bytes(10**6)) is None
    del body, kept
    assert budget.used_bytes == 0


def test_a_small_body_is_not_charged_once_it_is_complete():
    budget = BodyBudget(10**6)
    upload, _ = begun(budget, 5000)
    assert upload.finish(b"x" * 5000) == b"x" * 5000
    assert budget.used_bytes == 0


def test_bodies_that_other_threads_free():
    budget = BodyBudget(10**9)
    bodies = [[budget.charge_until_freed(bytes(1000)) for _ in range(500)] for _ in range(4)]
    threads = [threading.Thread(target=body.clear) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert budget.used_bytes == 0


def test_uploads_without_progress_are_evicted_the_largest_first(clock):
    budget = BodyBudget(1_000_000)
    small, small_evicted = begun(budget, 100_000)
    large, large_evicted = begun(budget, 500_000)
    clock.now += 10
    busy, busy_evicted = begun(budget, 300_000)
    clock.now += 1
    assert budget.charge(400_000)
    assert (large_evicted, small_evicted, busy_evicted) == ([large], [], [])
    assert budget.charge(250_000)
    assert (small_evicted, busy_evicted) == ([small], [])
    assert not budget.charge(200_000)
    assert (budget.used_bytes, budget.evicted, budget.refused) == (950_000, 2, 1)
    assert busy.grow(50_000)


def test_a_trickle_of_bytes_counts_as_stalled(clock):
    budget = BodyBudget(1_000_000)
    _, evicted = begun(budget, 900_000)
    clock.now += 10
    slow, slow_evicted = begun(budget, 50_000)
    for _ in range(20):
        clock.now += 2.1
        slow.grow(1)
    assert budget.charge(200_000)
    assert evicted
    assert budget.charge(800_000)
    assert slow_evicted


def test_a_body_that_can_never_fit_evicts_none(clock):
    budget = BodyBudget(1_000_000)
    _, evicted = begun(budget, 900_000)
    clock.now += 10
    assert not budget.has_room(1_000_001)
    assert not evicted


def test_an_upload_that_would_have_to_evict_itself_is_refused(clock):
    budget = BodyBudget(1_000_000)
    upload, evicted = begun(budget, 900_000)
    clock.now += 10
    assert not upload.grow(200_000)
    assert evicted == [upload]
    assert budget.used_bytes == 0
