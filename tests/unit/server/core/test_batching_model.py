"""A served model between its queue and its instances; every request ends exactly once."""

import asyncio
import gc
import weakref
from dataclasses import replace
from time import monotonic_ns
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conch.base.errors import (
    BackendError,
    Cancelled,
    DeadlineMissed,
    FailureReason,
    QueueFull,
    QueueTimeout,
    Unavailable,
)
from conch.domain.model_config import ModelConfig, QueuePolicy, TensorSpec
from conch.domain.request import InferRequest, InferResponse, Timeline
from conch.domain.tensor import Tensor
from conch.server.core.scheduling.batching_model import BatchingModel
from tests.unit.server.core.scripted import Caller, ScriptedInstance, config, dynamic, request


async def started(model_config: ModelConfig, instances: int = 1) -> tuple[BatchingModel, list[ScriptedInstance]]:
    workers = [ScriptedInstance() for _ in range(instances)]
    model = BatchingModel(model_config, 1, {}, workers, asyncio.get_running_loop())
    await model.start()
    return model, workers


async def test_idle_instance_takes_a_request_at_once() -> None:
    model, (worker,) = await started(config())
    caller = Caller()
    model.submit(request(id="x"), caller)
    assert len(worker.batches) == 1
    worker.answer()
    assert isinstance(caller.answer, InferResponse)
    assert caller.answer.id == "x"
    assert model.statistics.success.count == 1


async def test_requests_queued_behind_a_busy_instance_form_one_batch() -> None:
    model, (worker,) = await started(dynamic(8))
    callers = [Caller() for _ in range(5)]
    for caller in callers:
        model.submit(request(1, 2), caller)
    worker.answer()
    assert [len(batch.executions) for batch in worker.batches] == [4]
    worker.answer()
    assert all(caller.finals == 1 for caller in callers)
    statistics = model.statistics
    assert (statistics.inference_count, statistics.execution_count) == (5, 2)
    assert sorted(statistics.batches) == [1, 4]


class Twofold(ScriptedInstance):
    """Takes two batches at once where the owner allows it."""

    def takes(self, held: int) -> bool:
        return held < (2 if self.overlaps else 1)


async def test_an_instance_begins_as_many_batches_as_it_takes() -> None:
    workers = [Twofold(), Twofold()]
    model = BatchingModel(config(), 1, {}, workers, asyncio.get_running_loop())
    await model.start()
    callers = [Caller() for _ in range(6)]
    for caller in callers[:2]:
        model.submit(request(), caller)
    assert [len(worker.batches) for worker in workers] == [1, 1]  # those without a batch come first
    for caller in callers[2:]:
        model.submit(request(), caller)
    assert [len(worker.batches) for worker in workers] == [2, 2]
    assert model.statistics.pending == 2
    assert all(batch.begun for worker in workers for batch in worker.batches)
    workers[0].answer()
    assert [len(worker.batches) for worker in workers] == [2, 2]
    for worker in (*workers, *workers, workers[0]):
        worker.answer()
    assert [caller.finals for caller in callers] == [1] * 6
    assert model.statistics.pending == 0
    assert model.statistics.execution_count == 6


@pytest.mark.parametrize("position", [0, 1, 2])
async def test_cancellation_of_one_request_of_a_running_batch(position: int) -> None:
    model, (worker,) = await started(dynamic(8))
    model.submit(request(1, 2), Caller())
    callers = [Caller() for _ in range(3)]
    admitted = [model.submit(request(1, 2), caller) for caller in callers]
    worker.answer()
    admitted[position].cancel()
    worker.answer()
    for i, caller in enumerate(callers):
        assert isinstance(caller.answer, Cancelled if i == position else InferResponse)
    assert model.statistics.failures[FailureReason.CANCELED] == 1


async def test_a_request_cancelled_while_it_waits_is_not_executed() -> None:
    model, (worker,) = await started(config())
    model.submit(request(), Caller())
    caller = Caller()
    model.submit(request(id="gone"), caller).cancel()
    assert isinstance(caller.answer, Cancelled)
    worker.answer()
    assert worker.batches == []


async def test_a_failed_batch_fails_its_members_only() -> None:
    model, (worker,) = await started(config())
    first, second = Caller(), Caller()
    model.submit(request(), first)
    model.submit(request(), second)
    worker.fail()
    worker.answer()
    assert isinstance(first.answer, BackendError)
    assert isinstance(second.answer, InferResponse)
    assert model.statistics.failures[FailureReason.BACKEND] == 1


async def test_batch_runs_after_the_queue_delay() -> None:
    model, (worker,) = await started(dynamic(8, max_queue_delay_us=300_000))
    model.submit(request(1, 2), Caller())
    model.submit(request(1, 2), Caller())
    assert worker.batches == []
    while not worker.batches:
        await asyncio.sleep(0.001)
    (batch,) = worker.batches
    assert batch.started - batch.executions[0].request.timeline.queued >= 300_000_000
    assert len(batch.executions) == 2


async def test_request_is_rejected_at_its_queue_timeout() -> None:
    model, _ = await started(dynamic(1, default_queue_policy=QueuePolicy(default_timeout_us=1000)))
    model.submit(request(1, 2), Caller())
    caller = Caller()
    model.submit(request(1, 2), caller)
    while not caller.finals:  # the instance stays busy all the while
        await asyncio.sleep(0.001)
    assert isinstance(caller.answer, QueueTimeout)
    assert model.statistics.failures[FailureReason.REJECTED] == 1
    assert model.statistics.pending == 0


async def test_full_queue_rejects() -> None:
    model, _ = await started(dynamic(1, default_queue_policy=QueuePolicy(max_queue_size=1)))
    model.submit(request(1, 2), Caller())
    model.submit(request(1, 2), Caller())
    with pytest.raises(QueueFull):
        model.submit(request(1, 2), Caller())
    assert model.statistics.failures[FailureReason.REJECTED] == 1


async def test_preserve_ordering_holds_back_the_faster_instance() -> None:
    model, workers = await started(dynamic(1, preserve_ordering=True), instances=2)
    first, second = Caller(), Caller()
    model.submit(request(1, 2, id="1"), first)
    model.submit(request(1, 2, id="2"), second)
    holder = {w.batches[0].executions[0].request.id: w for w in workers}
    holder["2"].answer()
    assert (first.finals, second.finals) == (0, 0)
    holder["1"].answer()
    assert (first.finals, second.finals) == (1, 1)


async def test_requests_wait_while_the_only_instance_restarts() -> None:
    model, (worker,) = await started(config())
    first, second, third = Caller(), Caller(), Caller()
    model.submit(request(), first)
    model.submit(request(), second)
    worker.die()
    assert isinstance(first.answer, BackendError)
    assert not model.ready
    model.submit(request(), third)
    worker.recover()
    worker.answer()
    worker.answer()
    assert isinstance(second.answer, InferResponse)
    assert isinstance(third.answer, InferResponse)


async def test_requests_are_rejected_if_no_instance_recovers_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conch.server.core.scheduling.scheduled_model._NOT_READY_TIMEOUT_S", 0.001)
    model, (worker,) = await started(config())
    worker.die()
    caller = Caller()
    model.submit(request(), caller)
    async with asyncio.timeout(60):
        while not caller.finals:
            await asyncio.sleep(0.001)
    assert isinstance(caller.answer, Unavailable)
    with pytest.raises(Unavailable, match="not ready"):
        model.submit(request(), Caller())
    worker.recover()
    model.submit(request(), recovered := Caller())
    worker.answer()
    assert isinstance(recovered.answer, InferResponse)


async def test_fast_instance_holds_a_batch_ahead_and_an_idle_one_has_precedence() -> None:
    model, (first, second) = await started(config(), instances=2)
    first.holds_ahead = second.holds_ahead = 1
    for i in range(5):
        model.submit(request(id=str(i)), Caller())
    await asyncio.sleep(0)
    held = [[batch.executions[0].request.id for batch in worker.batches] for worker in (first, second)]
    assert held == [["1", "2"], ["0", "3"]]
    assert model.statistics.pending == 3  # what was sent ahead waits, too


async def test_slow_instances_hold_a_batch_ahead_only_under_full_load() -> None:
    model, workers = await started(dynamic(2), instances=2)
    for worker in workers:
        worker.holds_when_crowded = 1
    for _ in range(5):
        model.submit(request(1, 2), Caller())
        await asyncio.sleep(0)
    assert [[len(batch.executions) for batch in worker.batches] for worker in workers] == [[1], [1]]
    for _ in range(2):
        model.submit(request(1, 2), Caller())
        await asyncio.sleep(0)
    assert sum(len(batch.executions) for worker in workers for batch in worker.batches) == 4
    assert len(list(model._waiting())) == 3  # no crowd any more
    assert model.statistics.pending == 5


async def test_unbegun_batches_of_a_dead_instance_are_requeued_in_order() -> None:
    model, (worker,) = await started(config())
    worker.holds_ahead = 2
    callers = [Caller() for _ in range(5)]
    for i, caller in enumerate(callers):
        model.submit(request(id=str(i)), caller)
    worker.die()
    assert isinstance(callers[0].answer, BackendError)
    assert model.statistics.pending == 4
    worker.recover()
    assert [batch.executions[0].request.id for batch in worker.batches] == ["1", "2", "3"]
    for _ in range(4):
        worker.answer()
    assert all(isinstance(caller.answer, InferResponse) for caller in callers[1:])


@pytest.mark.parametrize("fields", [{}, {"priority_levels": 2, "default_priority_level": 2}])
async def test_requests_sent_ahead_count_against_the_queue_bound(fields: dict[str, Any]) -> None:
    model, (worker,) = await started(dynamic(1, default_queue_policy=QueuePolicy(max_queue_size=3), **fields))
    worker.holds_ahead = 2
    for number in range(4):
        model.submit(request(1, 2, id=str(number)), Caller())
        await asyncio.sleep(0)
    assert (len(worker.batches), model.statistics.pending) == (3, 3)
    with pytest.raises(QueueFull):
        model.submit(request(1, 2), Caller())
    worker.answer()
    await asyncio.sleep(0)
    assert (len(worker.batches), model.statistics.pending) == (3, 2)
    model.submit(request(1, 2), Caller())
    with pytest.raises(QueueFull):
        model.submit(request(1, 2), Caller())


async def test_rejection_while_all_requests_are_sent_ahead() -> None:
    model, (worker,) = await started(dynamic(1, default_queue_policy=QueuePolicy(max_queue_size=1)))
    worker.holds_ahead = 1
    for _ in range(2):
        model.submit(request(1, 2), Caller())
        await asyncio.sleep(0)
    assert len(worker.batches) == 2
    with pytest.raises(QueueFull, match=r"^\[request id: me\] Exceeds maximum queue size$"):
        model.submit(request(1, 2, id="me"), Caller())


async def test_cancelled_request_that_was_sent_ahead_is_not_pending() -> None:
    model, (worker,) = await started(dynamic(1, default_queue_policy=QueuePolicy(max_queue_size=1)))
    worker.holds_ahead = 1
    model.submit(request(1, 2), Caller())
    ahead = model.submit(request(1, 2), Caller())
    await asyncio.sleep(0)
    assert (len(worker.batches), model.statistics.pending) == (2, 1)
    ahead.cancel()
    assert model.statistics.pending == 0
    model.submit(request(1, 2), Caller())
    assert model.statistics.pending == 1
    worker.answer()
    assert model.statistics.pending == 1


async def test_answered_request_is_freed_without_garbage_collection() -> None:
    model, (worker,) = await started(config())
    gc.collect()
    gc.disable()
    try:
        large = Tensor("IN", "FP32", (2,), bytearray(8))
        sent = InferRequest("m", [large])
        left = weakref.ref(_Witness(sent))
        model.submit(sent, Caller())
        worker.answer()
        del large, sent
        assert left() is None
    finally:
        gc.enable()


async def test_rejected_request_is_freed_without_garbage_collection() -> None:
    model, _ = await started(dynamic(1, default_queue_policy=QueuePolicy(max_queue_size=1)))
    for _ in range(2):
        model.submit(request(1, 2), Caller())
    gc.collect()
    gc.disable()
    try:
        left = []
        for refuse in (lambda: model.check_room(Timeline()), lambda: model.submit(request(1, 2), Caller())):
            try:
                refuse()
            except QueueFull as error:
                left.append(weakref.ref(error))
        assert [refusal() for refusal in left] == [None, None]
    finally:
        gc.enable()


class _Witness(dict[str, object]):
    """Lives for as long as the request that it is attached to."""

    def __init__(self, sent: InferRequest) -> None:
        sent.parameters = self  # type: ignore[assignment]


async def test_stop_fails_waiting_requests() -> None:
    model, (worker,) = await started(config())
    model.submit(request(), Caller())
    caller = Caller()
    model.submit(request(), caller)
    await model.stop()
    assert isinstance(caller.answer, Unavailable)
    assert worker.stopped


async def test_drain_waits_for_the_last_response() -> None:
    model, (worker,) = await started(config())
    model.submit(request(), Caller())
    drained = asyncio.ensure_future(model.drain())
    await asyncio.sleep(0)
    assert not drained.done()
    worker.answer()
    await drained


async def test_requests_of_other_shapes_do_not_share_a_batch() -> None:
    spec = TensorSpec("IN", "FP32", (-1,))
    model, (worker,) = await started(replace(dynamic(8), inputs=(spec,)))
    model.submit(request(1, 2), Caller())
    for size in (2, 2, 3):
        model.submit(request(1, size), Caller())
    worker.answer()
    assert [len(batch.executions) for batch in worker.batches] == [2]


async def test_reshape_applies_to_the_backend_only() -> None:
    spec = TensorSpec("IN", "FP32", (4,), reshape=(2, 2))
    out = TensorSpec("OUT", "FP32", (4,), reshape=(2, 2))
    model, (worker,) = await started(config(max_batch_size=2, inputs=(spec,), outputs=(out,)))
    caller = Caller()
    model.submit(request(2, 4), caller)
    assert worker.batches[0].executions[0].request.inputs[0].shape == (2, 2, 2)
    worker.answer()
    assert isinstance(caller.answer, InferResponse)
    assert caller.answer.outputs[0].shape == (2, 4)


@settings(max_examples=60)
@given(st.lists(st.sampled_from(["submit", "cancel", "answer", "fail", "die", "recover"]), max_size=60), st.data())
def test_every_admitted_request_ends_exactly_once(actions: list[str], data: st.DataObject) -> None:
    async def scenario() -> None:
        model, workers = await started(data.draw(st.sampled_from([dynamic(4), config(max_batch_size=4)])), instances=2)
        for worker in workers:
            worker.holds_ahead = data.draw(st.integers(0, 2))
        callers: list[Caller] = []
        admitted = []
        for action in actions:
            worker = data.draw(st.sampled_from(workers))
            if action == "submit" and model.ready:
                callers.append(Caller())
                admitted.append(model.submit(request(1, 2), callers[-1]))
            elif action == "cancel" and admitted:
                data.draw(st.sampled_from(admitted)).cancel()
            elif action in ("answer", "fail") and worker.batches:
                getattr(worker, action)()
            elif action == "die" and worker.is_ready:
                worker.die()
            elif action == "recover" and not worker.is_ready:
                worker.recover()
            await asyncio.sleep(0)
            begun = [execution for worker in workers for batch in worker.batches[:1] for execution in batch.executions]
            unanswered = [pending for pending in admitted if not pending.cancelled]
            assert model.statistics.pending == sum(pending not in begun for pending in unanswered)
        for worker in workers:
            if not worker.is_ready:
                worker.recover()
        while any(worker.batches for worker in workers):
            for worker in workers:
                if worker.batches:
                    worker.answer()
        assert [caller.finals for caller in callers] == [1] * len(callers)
        statistics = model.statistics
        assert statistics.success.count + statistics.fail.count == len(callers)
        assert statistics.pending == 0
        assert model._queue._ahead == sum(level.ahead for level in model._queue._in_use) == 0
        await model.drain()
        await model.stop()

    asyncio.run(scenario())


# ── deadlines ──

SECOND = 1_000_000_000


def until_in(seconds: float) -> Timeline:
    """The timeline of a request whose client waits for this long."""
    timeline = Timeline()
    timeline.deadline = timeline.received + int(seconds * SECOND)
    return timeline


def measured(model: BatchingModel, seconds_by_size: dict[int, float]) -> None:
    """Have executions be known to take this long."""
    model.expected(monotonic_ns())
    for size, seconds in seconds_by_size.items():
        infer_done = int(seconds * SECOND)
        model.statistics.count_execution(size, 0, 0, infer_done, infer_done)
    model.expected(monotonic_ns())


class Clock:
    """The scheduler's clock, which tests move on."""

    def __init__(self) -> None:
        self.ahead_ns = 0

    def __call__(self) -> int:
        return monotonic_ns() + self.ahead_ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("conch.server.core.scheduling.batching_model.monotonic_ns", clock)
    return clock


def missed(model: BatchingModel, stage: str) -> int:
    return model.statistics.deadline_misses[stage]


async def test_a_deadline_that_has_passed_is_refused() -> None:
    model, (worker,) = await started(config())
    for check in (model.check_room, lambda timeline: model.submit(request(timeline=timeline), Caller())):
        with pytest.raises(
            DeadlineMissed, match=r"the deadline of the request passed .* ms before it was queued"
        ) as error:
            check(until_in(-0.5))
        assert (error.value.stage, error.value.retry_after_s) == ("arrival", None)
    assert missed(model, "arrival") == model.statistics.failures[FailureReason.REJECTED] == 2
    assert worker.batches == []


async def test_without_evidence_a_deadline_is_not_refused() -> None:
    model, (worker,) = await started(config())
    for _ in range(3):
        model.submit(request(timeline=until_in(60)), Caller())
    assert len(worker.batches) == 1
    assert len(list(model._waiting())) == 2


async def test_a_deadline_that_the_queue_makes_impossible_is_refused_with_a_time_to_come_back() -> None:
    model, workers = await started(config(), instances=2)
    measured(model, {1: 1000})
    for _ in range(5):
        model.submit(request(), Caller())
    with pytest.raises(DeadlineMissed, match=r"'m' would take about \d+\.\d ms, and \d+\.\d ms remain") as error:
        model.submit(request(timeline=until_in(2500)), Caller())
    # Two are executed, and three wait before it: it starts after 2000 s and ends after 3000.
    assert error.value.stage == "estimate"
    assert error.value.retry_after_s is not None
    assert 300 < error.value.retry_after_s < 600
    with pytest.raises(DeadlineMissed):
        model.check_room(until_in(2500))
    model.submit(request(timeline=until_in(4500)), caller := Caller())
    for worker in workers * 3:
        worker.answer()
    assert isinstance(caller.answer, InferResponse)
    assert missed(model, "estimate") == 2


async def test_a_deadline_shorter_than_an_execution_has_no_time_to_come_back() -> None:
    model, _ = await started(config())
    measured(model, {1: 1000})
    with pytest.raises(DeadlineMissed, match=r"its execution alone takes 1000000.0 ms") as error:
        model.submit(request(timeline=until_in(500)), Caller())
    assert error.value.retry_after_s is None


async def test_batches_shorten_the_wait_and_large_requests_lengthen_it() -> None:
    model, (worker,) = await started(dynamic(8))
    measured(model, {1: 1000, 8: 1600})
    model.submit(request(1, 2), Caller())
    for _ in range(14):
        model.submit(request(1, 2), Caller())
    # One batch is executed for up to 1000 s, and one of 8 is before that of the request: 4200 s in all.
    model.check_deadline(until_in(4500), 1)
    with pytest.raises(DeadlineMissed):
        model.check_deadline(until_in(3500), 1)
    model.submit(request(2, 2), Caller())
    with pytest.raises(DeadlineMissed):  # now two are before it
        model.check_deadline(until_in(4500), 1)
    worker.answer()
    model.check_deadline(until_in(5000), 1)


async def test_a_request_whose_deadline_passes_while_it_waits_is_not_executed(clock: Clock) -> None:
    model, (worker,) = await started(config())
    model.submit(request(), Caller())
    model.submit(request(timeline=until_in(600)), caller := Caller())
    clock.ahead_ns = 601 * SECOND
    model._dispatch()
    assert isinstance(caller.answer, DeadlineMissed)
    assert caller.answer.stage == "queue"
    worker.answer()
    assert worker.batches == []
    assert missed(model, "queue") == 1


async def test_a_request_that_was_sent_ahead_ends_with_its_deadline_and_its_instance_is_notified(clock: Clock) -> None:
    model, (worker,) = await started(config())
    worker.holds_ahead = 1
    model.submit(request(), Caller())
    model.submit(request(timeline=until_in(600)), caller := Caller())
    await asyncio.sleep(0)
    ahead = worker.batches[1].executions[0]
    notified: list[bool] = []
    ahead.on_cancel(lambda: notified.append(ahead.cancelled))
    clock.ahead_ns = 601 * SECOND
    model._dispatch()
    assert isinstance(caller.answer, DeadlineMissed)
    assert notified == [True]
    assert model.statistics.pending == 0
    worker.answer()
    worker.answer()
    assert missed(model, "queue") == 1
    assert missed(model, "late") == 0


async def test_a_response_after_the_deadline_is_counted() -> None:
    model, (worker,) = await started(config())
    timeline = until_in(60)
    model.submit(request(timeline=timeline), caller := Caller())
    timeline.deadline = timeline.received
    worker.answer()
    assert isinstance(caller.answer, InferResponse)
    assert missed(model, "late") == 1


@pytest.mark.parametrize(("received", "needed"), [(0, 1000), (-10 * SECOND, 1500)])
async def test_only_late_answers_that_could_have_been_in_time_make_executions_begin_earlier(
    received: int, needed: int
) -> None:
    model, (worker,) = await started(config())
    timeline = until_in(60)
    model.submit(request(timeline=timeline), Caller())
    timeline.received += received
    timeline.deadline = timeline.received - received // 2
    worker.answer()
    assert missed(model, "late") == 1
    assert model._service_times.with_margin(1000) == needed


async def test_an_idle_instance_executes_what_fits_although_others_were_late() -> None:
    model, _ = await started(config())
    measured(model, {1: 1000})
    for _ in range(4):  # then requests have to begin 3000 s before their deadlines
        model._service_times.ended(late=True)
    model.check_deadline(until_in(1500))
    with pytest.raises(DeadlineMissed, match="its execution alone takes"):
        model.check_deadline(until_in(900))
    model.submit(request(), Caller())
    with pytest.raises(DeadlineMissed):
        model.check_deadline(until_in(3500))
    model.check_deadline(until_in(4500))


async def test_a_batch_waits_for_its_delay_only_as_long_as_its_deadlines_permit(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conch.server.core.scheduling.batching_model._START_MARGIN_NS", 300 * SECOND)
    model, (worker,) = await started(dynamic(8, max_queue_delay_us=3_600_000_000))
    model.submit(request(1, 2), Caller())
    model.submit(request(1, 2, timeline=until_in(600)), caller := Caller())
    assert worker.batches == []
    clock.ahead_ns = 200 * SECOND
    model._dispatch()
    assert worker.batches == []
    clock.ahead_ns = 400 * SECOND
    model._dispatch()
    assert len(worker.batches[0].executions) == 2
    assert not caller.finals


async def test_a_timeout_that_the_queue_makes_impossible_is_refused_at_once() -> None:
    policy = QueuePolicy(allow_timeout_override=True)
    model, _ = await started(dynamic(1, default_queue_policy=policy))
    measured(model, {1: 1000})
    for _ in range(3):
        model.submit(request(1, 2), Caller())
    with pytest.raises(QueueTimeout, match=r"^Request timeout expired$") as error:
        model.submit(request(1, 2, timeout_us=2_500_000_000), Caller())
    assert 300 < (error.value.retry_after_s or 0) < 600
    model.submit(request(1, 2, timeout_us=3_500_000_000), Caller())
    assert model.statistics.failures[FailureReason.REJECTED] == 1
