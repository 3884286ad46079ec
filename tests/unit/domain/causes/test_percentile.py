import pytest

from conch.base.errors import InvalidRequest, NotFound
from conch.domain.causes.explain import Explainer
from conch.domain.causes.percentile import Percentile, explain_percentile
from conch.domain.causes.sentences import (
    batch_text,
    batching_sentence,
    percentile_sentence,
    processors_sentence,
    request_sentence,
    short_text,
)
from conch.domain.events.log import EventLog
from conch.domain.scheduling.batching import BatchRules
from tests.support.simulated_log import MS, Arrival, Rows, SimulatedModel, serve

SECOND = 1000 * MS


def incident() -> EventLog:
    """One image of 12,000 × 8,000 pixels among small ones, which takes 180 ms instead of 15."""
    model = SimulatedModel("preprocess", compute=lambda _start, batch: 180 * MS if batch[0].bytes > 10**7 else 15 * MS)
    arrivals = [Arrival(SECOND + number * 20 * MS, 150_000) for number in range(1000)]
    return serve(model, [*arrivals, Arrival(11 * SECOND - MS, 288_000_000)]).log()


def percentile(log: EventLog, number: float = 99, model: str = "") -> Percentile:
    """The causes of a percentile."""
    return explain_percentile(Explainer(log), number, model)


def test_one_large_image_among_small_ones() -> None:
    log = incident()
    slowest = percentile(log)
    first = slowest.causes[0]
    assert (first.cause, first.model) == ("large", "preprocess")
    assert 0.88 < first.more_ns / (slowest.slow_ns - slowest.ordinary_ns) <= 1
    assert percentile_sentence(slowest).startswith("The slowest 1 % (11 requests, from ")
    assert 'waiting behind an unusually large request to "preprocess"' in percentile_sentence(slowest)
    text = batch_text(Explainer(log), slowest.batches[0][0])
    assert "1 request (#501), 288 MB of inputs, computed 180 ms, usually 15 ms" in text
    waiting = Explainer(log).explain(slowest.slow[4])
    assert waiting is not None
    assert "; limit the size of its inputs" in request_sentence(waiting)


def test_a_short_model_that_waits_for_mates() -> None:
    """Triton 8251: 2 ms of compute and 8 ms in the queue, for all requests alike."""
    rules = BatchRules(8, frozenset({8}), 8 * MS, single=False, largest_preferred=8)
    model = SimulatedModel(rules=rules, compute=lambda _start, _batch: 2 * MS)
    log = serve(model, [Arrival(SECOND + number * 20 * MS) for number in range(200)]).log()
    slowest = percentile(log, 50)
    assert not slowest.differs
    assert slowest.causes[0].cause == "mates"
    assert "take about as long as ordinary ones" in percentile_sentence(slowest)
    assert "lower max_queue_delay_microseconds" in percentile_sentence(slowest)


def test_small_batches_for_no_visible_reason() -> None:
    """Triton 7776: batches of 4 would fit, but an instance is always idle and the model has no delay."""
    rules = BatchRules(4, frozenset({4}), 0, single=False, largest_preferred=4)
    model = SimulatedModel(instances=4, rules=rules, compute=lambda _start, _batch: 5 * MS)
    rows = serve(model, [Arrival(SECOND + number * 2 * MS) for number in range(200)])
    for row in rows.tables["batches"]:
        row["why_now"] = "idle"
    said = batching_sentence(Explainer(rows.log()), "detector")
    assert said.startswith('200 batches of "detector" have 1 request on average: they ran 100% because')
    assert batching_sentence(Explainer(incident()), "preprocess") == ""


def test_uneven_arrivals() -> None:
    """Triton 7492: the mean rate is far from the limit, and bursts wait for themselves."""
    model = SimulatedModel(compute=lambda _start, _batch: 2 * MS)
    bursts = [Arrival(SECOND + burst * 500 * MS + number) for burst in range(20) for number in range(10)]
    calm = [Arrival(20 * SECOND + number * 50 * MS) for number in range(300)]
    log = serve(model, [*bursts, *calm]).log()
    first = percentile(log, 95).causes[0]
    assert (first.cause, round(first.more_ns / MS)) == ("ahead", 15)


def test_the_slow_requests_are_those_of_another_model() -> None:
    """Slow requests are compared with ordinary ones of the same model."""
    rows = serve(SimulatedModel(), [Arrival(SECOND + number * 20 * MS) for number in range(200)])
    slow = SimulatedModel("segmenter", compute=lambda _start, _batch: 300 * MS)
    log = serve(slow, [Arrival(SECOND + number * SECOND) for number in range(4)], rows).log()
    slowest = percentile(log)
    assert not slowest.differs
    assert (slowest.causes[0].cause, slowest.causes[0].model) == ("compute", "segmenter")
    assert percentile(log, 99, "detector").causes[0].model == "detector"


def test_models_with_the_same_cause_are_named_together() -> None:
    """Three steps wait 20 to 30 ms for a processor, and one of them 40 ms for its queue: the processors matter most."""
    rows = Rows()
    taken = {"a": 20 * MS, "b": 30 * MS, "c": 25 * MS}
    for place in range(200):
        start, at = SECOND + place * 500 * MS, SECOND + place * 500 * MS
        whole = next(rows.numbers)
        for name, wait_ns in taken.items():
            slow = wait_ns if place % 50 == 0 else 0
            model = SimulatedModel(name, cpu_wait=lambda _start, ns=slow: ns)  # type: ignore[misc]
            serve(model, [Arrival(at)], rows, parent=whole)
            at = rows.tables["requests"][-1]["done"] + (40 * MS if place % 50 == 0 and name == "a" else 0)
        rows.add("requests", number=whole, model="pipeline", version=1, outcome="ok", received=start, queued=start,
                 done=at)  # fmt: skip
    log = rows.log(server={"cores": 2})
    slowest = percentile(log, 98)
    assert [cause.model for cause in slowest.causes if cause.cause == "cpu"] == ["b", "c", "a"]
    sentence = percentile_sentence(slowest)
    assert '65% "b", "c" and "a" being ready to run without a processor (75 ms, ordinarily 0 s)' in sentence
    assert "reserve processors for the server, or let fewer executions run at once" in sentence


@pytest.mark.parametrize(("beside", "says"), [(1, "something else took the rest"), (7, "take them from each other")])
def test_who_has_the_processors(beside: int, says: str) -> None:
    rows = serve(SimulatedModel(cpu_wait=lambda start: 300 * MS if start >= 2 * SECOND else 0), [Arrival(2 * SECOND)])
    for number in range(beside):
        rows.add("batches", number=900 + number, model="other", version=1, instance=f"other_{number}", size=1,
                 started=2 * SECOND, input_done=2 * SECOND, infer_done=3 * SECOND, released=3 * SECOND,
                 cpu_ns=200 * MS)  # fmt: skip
    log = rows.log(server={"cores": 2})
    request = Explainer(log).explain(1)
    assert request is not None
    sentence = processors_sentence(Explainer(log), [request])
    assert f"executions of this server used {10 * beside}% of its 2 processors: " in sentence
    assert sentence.endswith(says)


def test_a_cold_cache() -> None:
    arrivals = [Arrival(SECOND + number * 20 * MS, cache_hit=number % 100 != 3) for number in range(1000)]
    first = percentile(serve(SimulatedModel(), arrivals).log()).causes[0]
    assert (first.cause, round(first.more_ns / MS)) == ("miss", 10)


def test_what_cannot_be_explained() -> None:
    with pytest.raises(InvalidRequest, match="has 0 finished requests; a percentile needs 10 or more"):
        percentile(EventLog())
    with pytest.raises(NotFound, match="no request to a model 'x'; it has 'preprocess'"):
        percentile(incident(), model="x")
    with pytest.raises(InvalidRequest, match="has 2 finished requests;"):
        percentile(serve(SimulatedModel(), [Arrival(SECOND), Arrival(2 * SECOND)], Rows()).log())
    with pytest.raises(InvalidRequest, match="has 1 finished request;"):
        percentile(serve(SimulatedModel(), [Arrival(SECOND)], Rows()).log())


def test_the_short_form() -> None:
    request = Explainer(incident()).explain(506)
    assert request is not None
    assert short_text(request) == "total;dur=174.170, large;dur=159.100, compute;dur=15.000"
