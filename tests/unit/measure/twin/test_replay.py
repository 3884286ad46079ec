"""Replays of logs: equal where nothing changes, and what would have been faster."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conch.base.errors import InvalidRequest
from conch.measure.twin.forecast import Change
from conch.measure.twin.replay import counterfactual, simulate
from tests.unit.measure.twin.recorded import (
    BEGIN,
    MS,
    batching,
    document,
    ensemble,
    log_of,
    poisson,
    run,
    traffic,
    work,
)

SCHEDULERS = st.one_of(
    st.just(dict[str, Any]()),
    st.builds(batching, st.sampled_from([0, 500, 3000])),
    st.builds(batching, st.just(2000), preferred_batch_size=st.just([2, 4])),
    st.builds(batching, st.just(0), priority_levels=st.just(3), default_priority_level=st.just(2)),
)


@settings(max_examples=40, derandomize=True)
@given(SCHEDULERS, st.integers(1, 3), st.integers(50, 1500), st.integers(0, 1000))
def test_a_replay_forms_the_recorded_batches(scheduler: dict[str, Any], count: int, rate: int, seed: int) -> None:
    model = document(instances=count, **scheduler)
    random = np.random.default_rng(seed)
    sent = traffic(
        poisson(rate, 150, seed), sizes=random.integers(1, 4, 150).tolist(), kinds=random.integers(0, 2, 150).tolist()
    )
    truth = run(model, sent, work(lambda size: MS * (2 + size), seed), cores=0.7, machine=1.0)
    replayed = simulate(log_of(truth, model, machine=1.0), "m")
    assert replayed.equal == 1.0
    assert [replayed.done[number + 1] - BEGIN for number in range(150)] == truth.done


def test_an_ensemble_is_replayed() -> None:
    models = [ensemble("e", "a", "b"), document("a"), document("b", **batching(1000))]
    truth = run(models, traffic(poisson(300, 300)), work(lambda size: MS * (1 + size)))
    replayed = simulate(log_of(truth, *models), "e")
    assert replayed.equal == 1.0
    assert [replayed.done[number + 1] - BEGIN for number in range(300)] == truth.done


def test_a_second_instance_would_have_helped() -> None:
    """One request that takes long, behind which others wait."""
    model = document(**batching())
    kinds = [0] * 60
    kinds[30] = 1
    truth = run(model, traffic([number * 10 * MS for number in range(60)], kinds=kinds),
                work(lambda size: MS * (8 + size), sigma=0))  # fmt: skip
    log = log_of(truth, model)
    slow = [number + 1 for number in range(31, 33)]
    text = counterfactual(log, "m", slow)
    assert text is not None
    assert text.startswith("with a second instance ")
    assert simulate(log, "m", Change(instances=2)).latency[slow[0]] < simulate(log, "m").latency[slow[0]] / 2


def test_nothing_would_have_helped_a_slow_execution() -> None:
    model = document(**batching())
    truth = run(model, traffic([number * 100 * MS for number in range(60)]), work(lambda size: MS * (8 + size)))
    assert counterfactual(log_of(truth, model), "m", [5, 6]) is None
    assert counterfactual(log_of(truth, model), "m", [10**6]) is None
    assert counterfactual(log_of(truth, model), "absent", [1]) is None


def test_a_delay_that_costs_more_than_it_gives_is_named() -> None:
    model = document(**batching(20_000))
    truth = run(model, traffic([number * 100 * MS for number in range(60)]), work(lambda size: MS * (1 + size)))
    text = counterfactual(log_of(truth, model), "m", list(range(1, 61)))
    assert text is not None
    assert text.startswith("without max_queue_delay_microseconds 2")


def test_sizes_that_fill_memory_are_refused() -> None:
    model = document("m", 8)
    log = log_of(run(model, traffic(poisson(200, 50)), work(lambda size: MS * size)), model)
    with pytest.raises(InvalidRequest, match="batches of up to 2147483647"):
        simulate(log, "m", documents={"m": {**model, "max_batch_size": 2**31 - 1}})
