"""Forecasts against simulated truths: the model that the twin learns is known here."""

from dataclasses import replace

import pytest

from conch.base.errors import InvalidRequest, NotFound
from conch.measure.twin.forecast import Change, Forecast, Forecaster, Load, Prediction, forecast
from conch.measure.twin.learning import learn
from tests.unit.measure.twin.recorded import (
    MS,
    Document,
    batching,
    document,
    ensemble,
    log_of,
    percentile,
    poisson,
    run,
    station,
    traffic,
    work,
)

RUNS = 8
WORK = work(lambda size: 2.0 * MS + 0.4 * MS * size)
BATCHED = document(**batching(2000))
LOG = log_of(run(BATCHED, traffic(poisson(400, 2000)), WORK), BATCHED)


def near(estimate: Prediction, truth: float, error: float = 0.08) -> bool:
    return estimate.value == pytest.approx(truth, rel=error) and estimate.low <= estimate.value <= estimate.high


@pytest.mark.parametrize(
    ("change", "load", "model", "rate"),
    [
        (Change(), Load(), BATCHED, 400),
        (Change(delay_us=0), Load(), document(**batching()), 400),
        (Change(delay_us=5000, max_batch_size=4), Load(), document(max_batch_size=4, **batching(5000)), 400),
        (Change(instances=2), Load(factor=2), document(instances=2, **batching(2000)), 800),
        (Change(preferred=(3,)), Load(rate=700), document(**batching(2000, preferred_batch_size=[3])), 700),
    ],
)
def test_a_forecast_is_what_the_changed_model_does(change: Change, load: Load, model: Document, rate: int) -> None:
    truth = run(model, traffic(poisson(rate, 2500, seed=4)), work(lambda size: 2.0 * MS + 0.4 * MS * size, seed=4))
    prediction = forecast(LOG, "m", change, load, runs=RUNS)
    assert near(prediction.p50, percentile(truth, 50))
    assert near(prediction.p99, percentile(truth, 99))
    assert near(prediction.throughput, rate)
    of = station(truth)
    assert near(prediction.utilisation["m"], of.busy_ns / truth.now / of.instances)
    assert prediction.batch["m"] == pytest.approx(of.executed / of.executions, rel=0.08)
    assert prediction.check[2] == pytest.approx(prediction.recorded[2], rel=0.05)


def test_clients_that_wait_for_answers_are_found_and_kept() -> None:
    model = document()
    truth = run(model, traffic([0] * 800), WORK, clients=4)
    prediction = forecast(log_of(truth, model), "m", runs=RUNS)
    assert prediction.clients == 4
    assert near(prediction.p50, percentile(truth, 50))
    assert not any("keep up" in note for note in prediction.notes)
    assert forecast(log_of(truth, model), "m", Change(), Load(factor=2), runs=RUNS).clients == 8
    assert learn(LOG, "m").requests.clients == 0


def test_clients_that_are_answered_together_are_found() -> None:
    """Each batch has half of them, so that the number of requests in flight is not constant."""
    model = document(**batching(1000))
    learnt = learn(log_of(run(model, traffic([0] * 800), WORK, clients=6), model), "m")
    assert learnt.requests.clients == 6


def test_a_wait_for_the_instance_is_not_a_late_timer() -> None:
    model = document(**batching(1000))
    truth = run(model, traffic([0] * 800), WORK, clients=6)
    assert learn(log_of(truth, model), "m").executions["m"].lateness.max() < MS


def test_short_runs_vary_more() -> None:
    drawn = work(lambda size: 2.0 * MS + 0.4 * MS * size)  # WORK draws what other tests leave
    learnt = learn(log_of(run(BATCHED, traffic(poisson(400, 1000)), drawn), BATCHED), "m")
    short, long = (Forecaster(learnt, run_s=seconds).forecast({}, Load(rate=400), RUNS) for seconds in (0.05, 2.0))
    assert width(short.p99) > 1.5 * width(long.p99)
    assert short.simulated < long.simulated


def test_contention_is_learnt_where_executions_overlap() -> None:
    """Two processors, each execution uses one: three instances are hardly faster than two."""
    of_size = work(lambda size: 4.0 * MS + 0.4 * MS * size)
    model = document(instances=3)
    truth = run(model, traffic(poisson(380, 2000)), of_size, cores=1.0)
    learnt = learn(log_of(truth, model), "m")
    assert learnt.executions["m"].cores == pytest.approx(1.0, abs=0.2)
    prediction = forecast(log_of(truth, model), "m", Change(instances=4), runs=RUNS)
    more = run(document(instances=4), traffic(poisson(380, 2000, seed=3)), of_size, cores=1.0)
    assert near(prediction.p50, percentile(more, 50), 0.12)


def test_counters_of_processor_time_say_how_executions_would_share() -> None:
    truth = run(document(), traffic(poisson(150, 600)), WORK)
    log = log_of(truth, document(), machine=1.0, cpu_ns=1_200_000)
    assert learn(log, "m").executions["m"].cores == pytest.approx(0.5, abs=0.05)
    assert learn(log_of(truth, document()), "m").executions["m"].cores is None
    # A wait from before the execution is counted with it: one thread still uses one processor at most.
    log = log_of(truth, document(), machine=1.0, cpu_ns=1_200_000, cpu_wait_ns=2_200_000)
    assert learn(log, "m").executions["m"].cores == pytest.approx(1.0, abs=0.05)


def test_an_ensemble_is_forecast_by_its_steps() -> None:
    models = [ensemble("e", "a", "b"), document("a"), document("b", **batching(1000))]
    truth = run(models, traffic(poisson(300, 1000)), WORK)
    log = log_of(truth, *models)
    assert near(forecast(log, "e", runs=RUNS).p99, percentile(truth, 99), 0.12)
    faster = forecast(log, "e", {"a": Change(instances=2)}, runs=2)
    assert faster.utilisation["a"].value == pytest.approx(station(truth, "a").busy_ns / truth.now / 2, rel=0.1)
    with pytest.raises(InvalidRequest, match="'e' is an ensemble, whose steps have instances: a, b"):
        forecast(log, "e", Change(instances=2))
    with pytest.raises(InvalidRequest, match="'e' has no step 'c'"):
        forecast(log, "e", {"c": Change()})


def test_sequences_are_forecast() -> None:
    own = document(max_batch_size=4, sequence_batching={"oldest": {}, "max_sequence_idle_microseconds": 10**9})
    keys = [number // 10 + 1 for number in range(600)]
    ends = [number % 10 == 9 for number in range(600)]
    truth = run(own, traffic(poisson(300, 600), keys=keys, ends=ends), WORK)
    assert near(forecast(log_of(truth, own), "m", runs=RUNS).p50, percentile(truth, 50), 0.1)


def test_too_few_samples_are_named_with_how_many_it_needs() -> None:
    log = log_of(run(document(), traffic(poisson(100, 50)), WORK), document())
    prediction = forecast(log, "m", runs=RUNS)
    assert prediction.executions == 50
    assert prediction.notes[0].startswith("too few samples for P99: 50 executions of 'm', it needs 459: 4")


def test_what_the_log_has_not_seen_widens_the_interval_and_is_named() -> None:
    """Batches of more than one, and more instances than one, were never seen."""
    log = log_of(run(document(), traffic(poisson(150, 800)), WORK), document())
    known = forecast(log, "m", Change(), Load(rate=300), runs=RUNS)
    batched = forecast(log, "m", Change(delay_us=10_000), Load(rate=300), runs=RUNS)
    assert width(batched.p99) > 2 * width(replace(known.p50, low=known.p50.low))
    assert any("had 1 items at most in the log" in note for note in batched.notes)
    more = forecast(log, "m", Change(instances=3), Load(rate=600), runs=RUNS)
    assert any("did not overlap in the log" in note for note in more.notes)


def width(estimate: Prediction) -> float:
    return (estimate.high - estimate.low) / estimate.value


def test_a_load_that_is_too_high_is_named() -> None:
    prediction: Forecast = forecast(LOG, "m", Change(), Load(rate=5000), runs=2)
    assert any(note.startswith("does not keep up: ") for note in prediction.notes)
    refused = forecast(LOG, "m", Change(max_queue_size=4), Load(rate=5000), runs=2)
    assert refused.refused.value > 0.5


def test_settings_that_a_model_does_not_have_are_refused() -> None:
    unbatched = document(max_batch_size=0)
    log = log_of(run(unbatched, traffic(poisson(100, 50)), WORK), unbatched)
    with pytest.raises(InvalidRequest, match="model 'm' does not use dynamic batching, which the change is for"):
        forecast(log, "m", Change(delay_us=1))


def test_logs_that_lack_a_model_say_what_they_have() -> None:
    with pytest.raises(NotFound, match="the log has no configuration of model 'x'; it knows m"):
        forecast(LOG, "x")
    with pytest.raises(NotFound, match="the log has no request to model 'x'; it has m"):
        forecast(LOG, "x", documents={"x": document("x")})
    decoupled = document("m", model_transaction_policy={"decoupled": True})
    with pytest.raises(InvalidRequest, match="model 'm' is decoupled, which is not simulated"):
        forecast(LOG, "m", documents={"m": decoupled})
