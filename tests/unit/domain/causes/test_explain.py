from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conch.domain.causes.explain import Explainer
from conch.domain.causes.parts import RequestParts
from conch.domain.events.log import EventLog
from conch.domain.scheduling.batching import BatchRules
from tests.support.simulated_log import MS, US, Arrival, Rows, SimulatedModel, serve

SECOND = 1000 * MS


def batched(size: int, delay: int = 0) -> BatchRules:
    """The rules of a dynamic batcher."""
    return BatchRules(size, frozenset({size}), delay, single=False, largest_preferred=size)


def explained(log: EventLog, number: int) -> RequestParts:
    """The parts of a request, which sum to its whole."""
    return without_gaps(Explainer(log), number)


def without_gaps(explainer: Explainer, number: int) -> RequestParts:
    """The parts of a request, each of which begins where the one before ends."""
    request = explainer.explain(number)
    assert request is not None
    parts = list(request.leaves())
    assert sum(part.ns for part in parts) == request.ns
    assert all(before.end == after.start for before, after in pairwise(parts))
    return request


def times(log: EventLog, number: int) -> dict[str, int]:
    """Cause → ns of a request, without those below 100 µs."""
    sums = dict[str, int]()
    for part in explained(log, number).leaves():
        sums[part.cause] = sums.get(part.cause, 0) + part.ns
    return {cause: ns for cause, ns in sums.items() if ns >= 100 * US}


def steady(count: int = 20, every: int = 20 * MS, start: int = SECOND) -> list[Arrival]:
    """Requests that do not wait for each other."""
    return [Arrival(start + number * every) for number in range(count)]


def test_an_ordinary_request_computes() -> None:
    assert times(serve(SimulatedModel(), steady()).log(), 3) == {"compute": 10 * MS}


def test_the_queue_in_front_of_a_request_and_the_batch_that_runs_already() -> None:
    log = serve(SimulatedModel(), [*steady(), *(Arrival(2 * SECOND + number * MS) for number in range(4))]).log()
    assert times(log, 24) == {"busy": 7_020 * US, "ahead": 20_040 * US, "compute": 10 * MS}
    explainer = Explainer(log)
    parts = explainer.explain(24)
    assert parts is not None
    behind = [part.batch for part in parts.parts if part.cause in ("busy", "ahead")]
    assert [explainer.batch(number)[1]["number"].tolist() for number in behind] == [[21], [22], [23]]  # type: ignore[index]


def test_a_large_request_delays_the_small_ones_behind_it() -> None:
    model = SimulatedModel(compute=lambda _start, batch: 10 * MS if batch[0].bytes < 10**6 else 170 * MS)
    arrivals = [*steady(), Arrival(2 * SECOND, 288_000_000), Arrival(2 * SECOND + MS)]
    log = serve(model, arrivals).log()
    assert times(log, 22) == {"large": 169_020 * US, "compute": 10 * MS}
    assert times(log, 21) == {"compute": 10 * MS, "own_large": 160 * MS}


def test_a_small_request_in_a_batch_with_a_large_one() -> None:
    model = SimulatedModel(
        rules=batched(2, 5 * MS),
        compute=lambda _start, batch: 10 * MS * (10 if len({a.bytes for a in batch}) > 1 else 1),
    )
    pairs = [Arrival(item.queued + shift) for item in steady() for shift in (0, MS)]
    log = serve(model, [*pairs, Arrival(2 * SECOND, 10**8), Arrival(2 * SECOND + MS)]).log()
    assert times(log, 42) == {"large": 90 * MS, "compute": 10 * MS}
    assert times(log, 41) == {"mates": MS, "compute": 10 * MS, "own_large": 90 * MS}


def test_a_model_that_takes_longer_than_usual() -> None:
    model = SimulatedModel(compute=lambda start, _batch: 10 * MS if start < 2 * SECOND else 60 * MS)
    log = serve(model, [*steady(), Arrival(2 * SECOND), Arrival(2 * SECOND + MS)]).log()
    assert times(log, 21) == {"compute": 10 * MS, "slow": 50 * MS}
    behind = times(log, 22)
    assert (behind["slow"], behind["busy"]) == (100 * MS, 9_020 * US)


def test_a_process_without_a_processor() -> None:
    model = SimulatedModel(cpu_wait=lambda start: 0 if start < 2 * SECOND else 40 * MS)
    log = serve(model, [*steady(), Arrival(2 * SECOND)]).log()
    assert times(log, 21) == {"compute": 10 * MS, "cpu": 40 * MS}


def test_waits_before_and_after_executions_are_not_in_them() -> None:
    """A thread's wait is counted from the end of one execution to that of the next."""
    model = SimulatedModel(cpu_wait=lambda start: 0 if start < 2 * SECOND else 40 * MS)
    rows = serve(model, [*steady(), Arrival(2 * SECOND)])
    for row in rows.tables["batches"]:
        row |= {"cpu_ns": 10 * MS, "cpu_wait_ns": row["cpu_wait_ns"] + 15 * MS}
    assert times(rows.log(), 20) == {"compute": 10 * MS}
    assert times(rows.log(), 21) == {"compute": 10 * MS, "cpu": 40_020 * US}


def test_a_thread_that_spins_while_another_one_waits_for_a_processor() -> None:
    model = SimulatedModel(cpu_wait=lambda start: 0 if start < 2 * SECOND else 40 * MS)
    rows = serve(model, [*steady(), Arrival(2 * SECOND)])
    for row in rows.tables["batches"]:
        row |= {"cpu_ns": row["infer_done"] - row["input_done"]}
    assert times(rows.log(), 20) == {"compute": 10 * MS}
    assert times(rows.log(), 21) == {"compute": 10 * MS, "cpu": 40 * MS}


def test_the_usual_wait_for_a_processor_does_not_make_a_queue_slow() -> None:
    model = SimulatedModel(cpu_wait=lambda _start: 10 * MS)
    log = serve(model, [*steady(every=40 * MS), *(Arrival(2 * SECOND) for _ in range(3))]).log()
    assert times(log, 23) == {"ahead": 40_040 * US, "compute": 10 * MS, "cpu": 10 * MS}


def test_a_stopped_process() -> None:
    """The server looks at processes from time to time: it sees the stop and its end later than they are."""
    model = SimulatedModel(compute=lambda start, _batch: 1010 * MS if 2 * SECOND <= start < 3 * SECOND else 10 * MS)
    rows = serve(model, [*steady(), Arrival(2 * SECOND), Arrival(2 * SECOND + 100 * MS)])
    common = {"model": "detector", "version": 1, "instance": "detector_0"}
    rows.add("instances", **common, time=2 * SECOND + 180 * MS, change="stopped")
    rows.add("instances", **common, time=3 * SECOND + 50 * MS, change="continued")
    assert times(rows.log(), 21) == {"stopped": 1000 * MS, "compute": 10 * MS}
    assert times(rows.log(), 22)["stopped"] == 910_020 * US


def test_a_process_that_is_stopped_before_it_reads_its_inputs() -> None:
    rows = serve(SimulatedModel(), [*steady(), Arrival(2 * SECOND)])
    last = rows.tables["batches"][-1]
    for row in (last, rows.tables["requests"][-1]):
        row |= {name: row[name] + 800 * MS for name in ("input_done", "infer_done", "released", "done") if name in row}
    del rows.tables["exchanges"]
    common = {"model": "detector", "version": 1, "instance": "detector_0"}
    rows.add("instances", **common, time=2 * SECOND + 200 * MS, change="stopped")
    rows.add("instances", **common, time=2 * SECOND + 900 * MS, change="continued")
    assert times(rows.log(), 21) == {"stopped": 800_020 * US, "compute": 10 * MS}


def test_a_load_that_takes_the_processors() -> None:
    model = SimulatedModel(cpu_wait=lambda start: 0 if start < 2 * SECOND else 40 * MS)
    rows = serve(model, [*steady(), Arrival(2 * SECOND)])
    rows.add("changes", change="load", model="other", started=SECOND, ended=3 * SECOND)
    assert times(rows.log(), 21) == {"compute": 10 * MS, "loading": 40 * MS}


def test_a_process_that_hangs_and_is_replaced() -> None:
    """The server records since when the process made no progress, after a while."""
    model = SimulatedModel(compute=lambda start, _batch: 5010 * MS if 2 * SECOND <= start < 3 * SECOND else 10 * MS)
    rows = serve(model, [*steady(), Arrival(2 * SECOND), Arrival(2 * SECOND + 100 * MS), Arrival(9 * SECOND)])
    common = {"model": "detector", "version": 1, "instance": "detector_0"}
    rows.add("instances", **common, time=2 * SECOND, change="stalled")
    rows.add("instances", **common, time=7 * SECOND, change="replaced")
    assert times(rows.log(), 21) == {"hung": 5000 * MS, "compute": 10 * MS}
    assert times(rows.log(), 22)["hung"] == 4_910_020 * US
    assert times(rows.log(), 23) == {"compute": 10 * MS}


def test_the_first_request_hangs() -> None:
    """No execution says what is usual."""
    rows = serve(SimulatedModel(compute=lambda _start, _batch: 5 * SECOND), [Arrival(SECOND)])
    batch = rows.tables["batches"][0]
    batch |= {"infer_done": 0, "input_done": 0, "failed": 1}
    rows.add("instances", model="detector", version=1, instance="detector_0", time=SECOND, change="stalled")
    assert times(rows.log(), 1) == {"hung": 5 * SECOND + 20 * US}


def test_an_engine_that_hangs() -> None:
    rows = Rows()
    rows.add("requests", number=1, model="llm", version=1, outcome="ok", prompt_tokens=100, completion_tokens=5,
             received=SECOND, queued=SECOND, first_token=SECOND + 20 * MS, done=4 * SECOND)  # fmt: skip
    for start, end in ((0, 20), (20, 40), (2900, 3000)):
        rows.add("steps", model="llm", version=1, started=SECOND + start * MS, ended=SECOND + end * MS,
                 prefill_tokens=0 if start else 100, decode_tokens=1)  # fmt: skip
    rows.add("instances", model="llm", version=1, instance="engine", time=SECOND + 40 * MS, change="stalled")
    assert times(rows.log(), 1) == {"prefill": 20 * MS, "decode": 20 * MS, "hung": 2960 * MS}


def test_the_rate_limiter() -> None:
    rows = serve(SimulatedModel(), [*steady(), Arrival(2 * SECOND)])
    late = dict.fromkeys(("started", "input_done", "infer_done", "done"), 300 * MS)
    batch, request = rows.tables["batches"][-1], rows.tables["requests"][-1]
    for row in (batch, request):
        row |= {name: row[name] + ns for name, ns in late.items() if name in row}
    batch |= {"formed": batch["formed"] + 300 * MS, "released": batch["released"] + 300 * MS}
    del rows.tables["exchanges"]
    rows.add("holds", model="detector", version=1, instance="detector_0", holder="other", started=2 * SECOND,
             ended=2 * SECOND + 300 * MS)  # fmt: skip
    rows.add("holds", model="other", version=1, started=SECOND, ended=3 * SECOND)
    assert times(rows.log(), 21) == {"limiter": 300 * MS, "compute": 10 * MS}


_TIMES = st.integers(0, 400).map(lambda number: SECOND + number * MS)
# How far a batch has come → its times that have not.
_ENDS = {
    "ahead": ("started", "input_done", "infer_done", "released"),
    "begun": ("input_done", "infer_done", "released"),
    "computing": ("infer_done", "released"),
    "failed": ("input_done", "infer_done"),
    "failed to compute": ("infer_done",),
}
_SPANS = st.lists(st.tuples(_TIMES, st.integers(1, 200)), max_size=4)


@settings(max_examples=60)
@given(
    arrivals=st.lists(st.builds(Arrival, _TIMES, st.sampled_from([100, 10**8])), min_size=1, max_size=12),
    instances=st.integers(1, 3),
    size=st.integers(1, 4),
    delay_ms=st.integers(0, 30),
    wait_ms=st.integers(0, 40),
    calls=st.lists(_TIMES, max_size=6),
    pauses=_SPANS,
    holds=_SPANS,
    ends=st.dictionaries(st.integers(0, 8), st.sampled_from(list(_ENDS))),
    changes=st.lists(st.tuples(_TIMES, st.sampled_from(["stalled", "stopped", "continued", "down", "up"])), max_size=6),
)
def test_parts_sum_to_the_whole_whatever_happens(
    arrivals: list[Arrival], instances: int, size: int, delay_ms: int, wait_ms: int, calls: list[int],
    pauses: list[tuple[int, int]], holds: list[tuple[int, int]], ends: dict[int, str],
    changes: list[tuple[int, str]],
) -> None:  # fmt: skip
    """Also where rows contradict each other: a cause is given once, and no nanosecond is left out."""
    compute = {100: 10 * MS, 10**8: 90 * MS}
    model = SimulatedModel(
        instances=instances, rules=batched(size, delay_ms * MS), cpu_wait=lambda _start: wait_ms * MS,
        compute=lambda _start, batch: max(compute[item.bytes] for item in batch),
    )  # fmt: skip
    rows = serve(model, arrivals)
    if calls:
        serve(SimulatedModel("called"), [Arrival(time) for time in calls], rows, parent=1)
    common = {"model": "detector", "version": 1, "instance": "detector_0"}
    for start, length in pauses:
        rows.add("pauses", kind="stall" if length % 2 else "gc 2", started=start, ended=start + length * MS,
                 cpu_wait_ns=length * MS // 3)  # fmt: skip
    for start, length in holds:
        rows.add("holds", **common, started=start, ended=start + length * MS)
    for time, change in changes:
        rows.add("instances", **common, time=time, change=change)
    for place, end in ends.items():
        for batch in rows.tables["batches"][place : place + 1]:
            batch |= dict.fromkeys(_ENDS[end], 0)
    log = rows.log()
    explainer = Explainer(log)
    whole = dict(zip(log.requests["number"].tolist(), explainer.whole_ns().tolist(), strict=True))
    for number, ns in whole.items():
        assert without_gaps(explainer, number).ns == ns


def test_waiting_for_batch_mates() -> None:
    """8 ms of queue for a model of 2 ms, with requests that arrive one by one: the delay of the batcher."""
    model = SimulatedModel(rules=batched(8, 8 * MS), compute=lambda _start, _batch: 2 * MS)
    log = serve(model, steady()).log()
    assert times(log, 5) == {"mates": 8 * MS, "compute": 2 * MS}


def test_instances_that_are_down() -> None:
    model = SimulatedModel(instances=2, down=[(2 * SECOND, 2 * SECOND + 300 * MS)])
    log = serve(model, [*steady(), Arrival(2 * SECOND + 100 * MS)]).log()
    assert times(log, 21) == {"down": 200 * MS, "compute": 10 * MS}


def test_a_second_instance_shortens_the_queue() -> None:
    arrivals = [*steady(), *(Arrival(2 * SECOND) for _ in range(4))]
    assert times(serve(SimulatedModel(instances=2), arrivals).log(), 24)["ahead"] == 10_020 * US


def test_an_instance_that_executes_two_batches_at_once() -> None:
    rows = serve(SimulatedModel(instances=2), [*steady(), *(Arrival(2 * SECOND) for _ in range(3))])
    for row in rows.tables["batches"]:
        row["instance"] = "detector_0"
    assert times(rows.log(), 23) == {"ahead": 10_020 * US, "compute": 10 * MS}


def test_slow_clients() -> None:
    log = serve(SimulatedModel(), [*steady(), Arrival(2 * SECOND, send=30 * MS, read=70 * MS)]).log()
    assert times(log, 21) == {"client_send": 30 * MS, "compute": 10 * MS, "client_read": 70 * MS}


@pytest.mark.parametrize(("kind", "causes"), [("gc 2", {"gc": 5 * MS}), ("stall", {"loop": 3 * MS, "cpu": 2 * MS})])
def test_pauses_of_the_event_loop(kind: str, causes: dict[str, int]) -> None:
    rows = serve(SimulatedModel(), steady())
    rows.add("requests", number=99, model="detector", version=1, outcome="ok", batch=98, shape="IMAGE UINT8 [48000]",
             received=3 * SECOND, queued=3 * SECOND, input_bytes=48_000, done=3 * SECOND + 15 * MS)  # fmt: skip
    rows.add("batches", number=98, model="detector", version=1, instance="detector_0", members=1, size=1,
             why_now="single", started=3 * SECOND + 5 * MS, input_done=3 * SECOND + 5 * MS,
             infer_done=3 * SECOND + 15 * MS, released=3 * SECOND + 15 * MS)  # fmt: skip
    rows.add("pauses", kind=kind, started=3 * SECOND, ended=3 * SECOND + 5 * MS, cpu_wait_ns=2 * MS)
    assert times(rows.log(), 99) == {**causes, "compute": 10 * MS}


def test_a_miss_of_a_warm_cache() -> None:
    arrivals = [Arrival(item.queued, cache_hit=number > 1) for number, item in enumerate(steady(40))]
    log = serve(SimulatedModel(), arrivals).log()
    assert times(log, 1) == {"miss": 10 * MS}
    assert times(log, 30) == {}


def test_the_critical_path_of_an_ensemble() -> None:
    """Two steps side by side, then a third: the slower of the two and the third are the path."""
    rows = Rows()
    rows.add("requests", number=(whole := next(rows.numbers)), model="pipeline", version=1, outcome="ok",
             received=SECOND, queued=SECOND, started=SECOND, done=SECOND + 100 * MS)  # fmt: skip
    for name, start, took in (("left", 0, 20), ("right", 0, 60), ("last", 60, 30)):
        model = SimulatedModel(name, compute=lambda _start, _batch, took=took: took * MS)  # type: ignore[misc]
        serve(model, [Arrival(SECOND + start * MS + MS)], rows, parent=whole)
    log = rows.log()
    request = explained(log, whole)
    assert [step.model for _, step in request.walk()] == ["pipeline", "right", "last"]
    assert [part.cause for part in request.parts if part.ns > 100 * US] == ["loop", "step", "step", "loop"]


def test_a_call_in_a_model_is_nested_in_its_computing() -> None:
    rows = serve(SimulatedModel("caller", compute=lambda _start, _batch: 50 * MS), [Arrival(SECOND)])
    serve(SimulatedModel("called", compute=lambda _start, _batch: 30 * MS), [Arrival(SECOND + 10 * MS)], rows, parent=1)
    log = rows.log()
    sums = {(part.cause, part.model): part.ns for part in explained(log, 1).leaves() if part.ns > MS}
    assert sums[("compute", "called")] == 30 * MS
    assert sum(ns for (cause, model), ns in sums.items() if (cause, model) == ("compute", "caller")) < 50 * MS


def test_a_sequence_waits_for_its_earlier_requests() -> None:
    rows = serve(SimulatedModel(instances=2), [Arrival(SECOND), Arrival(SECOND + MS)])
    for row in rows.tables["requests"]:
        row["correlation"] = 7
    log = rows.log()
    assert "sequence" not in times(log, 1)
    del rows.tables["exchanges"]
    rows.tables["requests"][1] |= {"queued": SECOND + MS, "batch": 0, "outcome": "timeout", "started": 0,
                                   "done": SECOND + 6 * MS}  # fmt: skip
    assert times(rows.log(), 2) == {"sequence": 5 * MS}


def test_unknown_numbers_and_rows_that_are_lost() -> None:
    rows = serve(SimulatedModel(), steady())
    del rows.tables["batches"]
    log = rows.log()
    assert Explainer(log).explain(999) is None
    assert times(log, 3) == {"unrecorded": 10_030 * US}


def test_requests_that_have_not_ended() -> None:
    rows = serve(SimulatedModel(), steady())
    rows.add("requests", number=77, model="detector", version=1, outcome="unfinished", received=2 * SECOND,
             queued=2 * SECOND, done=0)  # fmt: skip
    assert times(rows.log(end=2 * SECOND + 40 * MS), 77) == {"loop": 40 * MS}


def test_a_generation() -> None:
    rows = Rows()
    rows.add("requests", number=1, model="llm", version=1, outcome="ok", prompt_tokens=100, completion_tokens=5,
             received=SECOND, queued=SECOND, started=SECOND + 20 * MS, first_token=SECOND + 40 * MS,
             done=SECOND + 100 * MS)  # fmt: skip
    for start, prefill, cache in (
        (0, 0, 990),
        (20, 200, 500),
        (40, 0, 500),
        (50, 0, 500),
        (60, 300, 500),
        (90, 0, 500),
    ):
        end = {20: 40, 60: 90, 0: 20}.get(start, start + 10)
        rows.add("steps", model="llm", version=1, started=SECOND + start * MS, ended=SECOND + end * MS,
                 prefill_tokens=prefill, decode_tokens=3, running=3, cache_used=cache)  # fmt: skip
    assert times(rows.log(), 1) == {
        "cache_wait": 20 * MS,
        "prefill": 10 * MS,
        "prefill_others": 10 * MS + 20 * MS,
        "decode": 40 * MS,
    }


def test_a_generation_of_an_engine_without_steps() -> None:
    rows = Rows()
    rows.add("requests", number=1, model="llm", version=1, outcome="ok", prompt_tokens=100, completion_tokens=5,
             received=SECOND, queued=SECOND, first_token=SECOND + 40 * MS, done=SECOND + 100 * MS)  # fmt: skip
    assert times(rows.log(), 1) == {"prefill": 40 * MS, "decode": 60 * MS}
