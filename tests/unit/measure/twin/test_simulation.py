"""The simulation against queueing theory, and rule by rule."""

import numpy as np
import pytest

from conch.domain.scheduling.rate_limiter import RateLimiter
from conch.measure.twin.simulation import BatchStation, Simulation
from tests.unit.measure.twin.recorded import (
    MS,
    Document,
    batching,
    config,
    document,
    ensemble,
    poisson,
    run,
    station,
    traffic,
    work,
)

FIXED = work(lambda size: MS * (1 + size), sigma=0)  # 2 ms for one


def sizes(simulation: Simulation) -> list[int]:
    return [batch.size for batch in sorted(simulation.batches, key=lambda batch: batch.formed)]


def waits(simulation: Simulation) -> list[int]:
    """How long requests were in the queue, in the order of their arrival."""
    by_number = {job.number: batch.begun - job.queued for batch in simulation.batches for job in batch.jobs}
    return [by_number[number] for number in sorted(by_number)]


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_one_instance_waits_as_long_as_theory_says(load: float) -> None:
    """Poisson arrivals and constant work: Pollaczek and Khinchine's mean wait, load / (2 (1 - load)) of the work."""
    simulation = run(document(), traffic(poisson(load * 500, 20_000)), FIXED)
    assert np.mean(waits(simulation)) == pytest.approx(load / (2 * (1 - load)) * 2 * MS, rel=0.05)
    assert station(simulation).busy_ns / simulation.now == pytest.approx(load, rel=0.02)


def test_requests_that_wait_share_a_batch() -> None:
    simulation = run(document(**batching()), traffic([0, 10, 20, 30, 9 * MS]), FIXED)
    assert sizes(simulation) == [1, 3, 1]
    assert simulation.done == [2 * MS + 30_000] + [6 * MS + 30_000] * 3 + [11 * MS + 30_000]


def test_a_delay_gathers_a_batch_and_its_timer_is_late() -> None:
    simulation = run(document(**batching(1000)), traffic([0, MS // 2, 2 * MS]), FIXED)
    assert [batch.formed for batch in simulation.batches] == [MS + 50_000, 4 * MS + 50_000]
    assert sizes(simulation) == [2, 1]


def test_requests_of_other_shapes_do_not_share_a_batch() -> None:
    free = document(**batching(), input=[{"name": "IN", "data_type": "TYPE_FP32", "dims": [-1]}])
    simulation = run(free, traffic([0, 1, 2, 3], kinds=[0, 0, 1, 0]), FIXED)
    assert sizes(simulation) == [1, 1, 1, 1]
    assert [batch.released - batch.begun for batch in simulation.batches] == [2 * MS, 2 * MS, 8 * MS, 2 * MS]


def test_two_instances_work_at_once_and_share_processors() -> None:
    alone = run(document(instances=2), traffic([0, 0]), FIXED, cores=1.0, machine=2.0)
    shared = run(document(instances=2), traffic([0, 0]), FIXED, cores=1.0, machine=1.0)
    later = run(document(instances=2), traffic([0, MS]), FIXED, cores=1.0, machine=1.0)
    assert [simulation.batches[-1].released for simulation in (alone, shared, later)] == [2 * MS, 4 * MS, 4 * MS]
    # Alone for 1 ms, then at half the speed until its end; the other one is alone in the end.
    assert later.batches[0].released == 3 * MS


def test_clients_send_one_request_after_the_other() -> None:
    simulation = run(document(), traffic([0] * 50), FIXED, clients=2)
    assert station(simulation).executions == 50
    assert simulation.done[-1] - simulation.began[-1] == pytest.approx(4 * MS + 50_000, abs=100_000)


def test_a_python_model_of_short_executions_gets_a_batch_ahead_when_it_is_crowded() -> None:
    simulation = run(document(), traffic(list(range(200))), FIXED, executing=1.0)
    assert any(batch.begun > batch.formed for batch in simulation.batches)
    assert all(simulation.done)


def test_full_queues_refuse_and_timeouts_end_requests() -> None:
    full = run(document(), traffic([0, 1, 2, 3]), FIXED, max_queue_size=2)
    assert (full.refused, [end > 0 for end in full.done]) == (1, [True, True, True, False])
    policy: Document = {"default_queue_policy": {"default_timeout_microseconds": 1000}}
    late = run(document(max_batch_size=1, **batching(**policy)), traffic([0, 1]), FIXED)
    assert (late.refused, [end > 0 for end in late.done]) == (1, [True, False])


def test_tenants_take_turns() -> None:
    flood, other = ["a"] * 6, ["b"]
    simulation = run(document(), traffic([0, 1, 2, 3, 4, 5, 6], tenants=flood + other), FIXED)
    assert sorted(simulation.done).index(simulation.done[6]) == 2


def test_priorities_overtake() -> None:
    levels = batching(priority_levels=2, default_priority_level=2)
    simulation = run(document(max_batch_size=1, **levels), traffic([0, 1, 2], priorities=[2, 2, 1]), FIXED)
    assert np.argsort(simulation.done).tolist() == [0, 2, 1]


def test_models_that_share_a_resource_take_turns() -> None:
    simulation = Simulation(traffic([0, 0, 0]), 2.0)
    model = BatchStation(simulation, config(document(instances=2)), FIXED, 2, 0.0, [0], 0.0, 0)
    model.limit(RateLimiter(), {("R", 0): 1}, 1)
    simulation.add(model)
    simulation.run()
    assert simulation.done == [number * 2 * MS + 30_000 for number in (1, 2, 3)]


@pytest.mark.parametrize("strategy", ["oldest", "direct"])
def test_requests_of_a_sequence_are_executed_one_by_one(strategy: str) -> None:
    own = document(max_batch_size=2, sequence_batching={strategy: {}, "max_sequence_idle_microseconds": 10**9})
    keys, ends = [5, 5, 6, 7], [False, True, True, True]
    simulation = run(own, traffic([0, 1, 2, 3], keys=keys, ends=ends), FIXED)
    batches = [sorted(job.key for job in batch.jobs) for batch in simulation.batches]
    assert sorted(key for batch in batches for key in batch) == [5, 5, 6, 7]
    assert all(len(set(batch)) == len(batch) for batch in batches)
    # Two slots: sequence 7 waits until one of the others has ended.
    assert simulation.done[3] > min(simulation.done[1], simulation.done[2])


def test_steps_of_an_ensemble_follow_each_other() -> None:
    steps = [document("a"), document("b", **batching())]
    simulation = run([ensemble("e", "a", "b"), *steps], traffic([0, 0]), FIXED)
    assert simulation.done == [4 * MS + 30_000, 6 * MS + 30_000]
    assert station(simulation, "a").executions == station(simulation, "b").executions == 2


def test_independent_steps_run_at_once() -> None:
    both = ensemble("e", "a", "b")
    both["ensemble_scheduling"]["step"][1]["input_map"] = {"IN": "IN"}
    simulation = run([both, document("a"), document("b")], traffic([0]), FIXED)
    assert simulation.done == [2 * MS + 30_000]


def test_an_ensemble_bounds_the_requests_at_a_step() -> None:
    bounded = ensemble("e", "a")
    bounded["ensemble_scheduling"]["max_inflight_requests"] = 1
    simulation = run([bounded, document("a", instances=2)], traffic([0, 0]), FIXED)
    assert simulation.done == [2 * MS + 30_000, 4 * MS + 30_000]
