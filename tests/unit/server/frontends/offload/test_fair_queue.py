"""Clients take turns by the time that their jobs have taken, and large jobs leave a worker to small ones."""

from dataclasses import dataclass

from conch.server.frontends.offload.fair_queue import LARGE_JOB_BYTES, FairQueue


@dataclass
class Work:
    client: str
    size: int = 1


def taken(queue: FairQueue[Work], count: int, seconds: float = 0.0) -> list[str]:
    """Take and finish jobs, and return whose they were."""
    clients = []
    for _ in range(count):
        job = queue.get(0)
        assert job is not None
        clients.append(job.client)
        queue.done(job, seconds)
    return clients


def test_clients_take_turns() -> None:
    queue: FairQueue[Work] = FairQueue(1)
    for client in "aaaabb":
        queue.put(Work(client))
    assert taken(queue, 6, 0.1) == ["a", "b", "a", "b", "a", "a"]
    assert queue.get(0) is None


def test_a_client_pays_for_the_time_of_its_jobs() -> None:
    queue: FairQueue[Work] = FairQueue(1)
    for client in "aaabbb":
        queue.put(Work(client))
    assert taken(queue, 1, 10.0) == ["a"]
    assert taken(queue, 5, 1.0) == ["b", "b", "b", "a", "a"]


def test_a_client_that_was_idle_gets_no_credit_for_it() -> None:
    queue: FairQueue[Work] = FairQueue(1)
    for _ in range(10):
        queue.put(Work("a"))
    taken(queue, 6, 1.0)
    for _ in range(4):
        queue.put(Work("b"))
    assert sorted(taken(queue, 4, 1.0)) == ["a", "a", "b", "b"]


def test_large_jobs_leave_a_worker_to_small_ones() -> None:
    queue: FairQueue[Work] = FairQueue(2)
    queue.put(Work("a", LARGE_JOB_BYTES + 1))
    queue.put(Work("b", LARGE_JOB_BYTES + 1))
    large = queue.get(0)
    assert large is not None
    assert queue.get(0) is None
    queue.put(Work("c"))
    small = queue.get(0)
    assert small is not None
    assert small.client == "c"
    queue.done(large, 1.0)
    after = queue.get(0)
    assert after is not None
    assert after.client != large.client


def test_the_client_with_the_most_jobs_makes_room() -> None:
    queue: FairQueue[Work] = FairQueue(1)
    for client in "aaab":
        queue.put(Work(client))
    evicted = queue.evict("c")
    assert evicted is not None
    assert evicted.client == "a"
    assert queue.evict("a") is None
    assert queue.evict("b") is None


def test_idle_clients_are_forgotten() -> None:
    queue: FairQueue[Work] = FairQueue(1)
    for number in range(10_000):
        queue.put(Work(f"client {number}"))
        taken(queue, 1, 1.0)
    assert len(queue._clients) <= 300
    queue.close()
    assert queue.get(None) is None
