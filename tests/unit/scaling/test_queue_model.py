"""The fluid model of queues against theory and against a discrete-event simulation."""

import numpy as np
import pytest

from conch.scaling.simulation.engine import simulate
from conch.scaling.simulation.queue_model import QueueModel, erlang_c
from conch.scaling.simulation.scenario import Scenario
from conch.scaling.simulation.service import ServiceModel, constant_service, language_model, lognormal
from conch.scaling.traffic import TrafficCurve
from tests.unit.scaling.discrete_events import simulate_events


def test_erlang_c_is_right_for_known_queues() -> None:
    assert erlang_c(np.array([0.5]), 1)[0] == pytest.approx(0.5)  # M/M/1: the utilization
    assert erlang_c(np.array([0.75]), 2)[0] == pytest.approx(0.6428571)
    assert erlang_c(np.array([0.8]), 10)[0] == pytest.approx(0.40918, rel=1e-4)


def test_the_settled_queue_is_that_of_the_formula() -> None:
    model = QueueModel(ServiceModel(lognormal(0.1, 1.0)))  # M/G/1 with the variation of M/M/1
    inside = 0.0
    for _ in range(600):
        inside, completed, utilization = model.step(inside, 8.0)
    assert completed == pytest.approx(8.0, rel=1e-3)
    assert utilization == pytest.approx(0.8, rel=1e-3)
    # 0.8 / 0.2, but for the cut tail of the quantiles.
    assert inside == pytest.approx(4.0, rel=0.12)


@pytest.mark.parametrize("rate", [0.0, 5.0, 50.0, 5000.0])
def test_requests_are_conserved(rate: float) -> None:
    model = QueueModel(constant_service(0.1, 4, 1.0))
    inside, arrived, left = 0.0, 0.0, 0.0
    for _ in range(300):
        inside, completed, _ = model.step(inside, rate)
        arrived, left = arrived + rate, left + completed
        assert inside >= 0
    assert arrived == pytest.approx(left + inside, abs=1e-6)


LOADS = {
    "light": np.full(400, 60.0),
    "busy": np.full(400, 130.0),
    "rise": np.concatenate([np.full(150, 60.0), np.linspace(60, 150, 150), np.full(100, 60.0)]),
    "overload": np.concatenate([np.full(100, 80.0), np.full(60, 240.0), np.full(240, 60.0)]),
}
# Of the share of late requests, in absolute terms; docs/autoscaling.md names it.
MAX_ERROR = 0.015


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("variation", [0.0, 1.0])
def test_late_requests_are_those_of_a_discrete_event_simulation(load: str, variation: float) -> None:
    """Two replicas with four instances of 50 ms, 160 requests/s together."""
    rates, service = LOADS[load], constant_service(0.05, 4, variation)
    scenario = Scenario(TrafficCurve(load, rates), service, slo_s=0.2)
    run = simulate("fixed", 2, scenario)
    late = []
    for seed in range(3):
        _, latencies = simulate_events(rates, 2, service, seed)
        late.append(float((latencies > 0.2).mean()))
    assert run.miss_share == pytest.approx(np.mean(late), abs=MAX_ERROR)


def test_a_backlog_is_as_large_and_ends_as_soon_as_in_the_discrete_event_simulation() -> None:
    rates, service = LOADS["overload"], constant_service(0.05, 4, 0.0)
    run = simulate("fixed", 2, Scenario(TrafficCurve("overload", rates), service, slo_s=0.2))
    arrivals, latencies = simulate_events(rates, 2, service, 1)
    inside = [int(((arrivals <= at) & (arrivals + latencies > at)).sum()) for at in range(400)]
    assert run.max_inside == pytest.approx(max(inside), rel=0.05)
    over_100 = [at for at in range(400) if run.inside[at] > 100], [at for at in range(400) if inside[at] > 100]
    assert over_100[0][-1] == pytest.approx(over_100[1][-1], abs=12)


def test_services() -> None:
    batching = ServiceModel(np.array([0.02]), servers=2, max_batch=8, batch_cost=0.25)
    assert batching.batch_s(8) == pytest.approx(0.055)
    assert batching.capacity == pytest.approx(2 * 8 / 0.055)
    chat = language_model(500, 200, 5000, 40, 32, kv_tokens=40_000)
    assert (chat.servers, chat.first_token_s) == (32, 0.1)
    assert chat.mean_s == pytest.approx(5.1)
    assert chat.kv_per_running == pytest.approx(0.015)
    assert lognormal(2.0, 0.7).mean() == pytest.approx(2.0)
