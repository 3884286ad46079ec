"""A sequence model between its clients and its instances: order, place, end, and every request answered once."""

import asyncio
from itertools import pairwise
from time import monotonic_ns

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conch.base.errors import BackendError, Cancelled, InvalidRequest, QueueFull, QueueTimeout, Unavailable
from conch.domain.model_config import SequenceBatching
from conch.domain.request import SEQUENCE_START, InferResponse
from tests.unit.server.core.scripted import Caller, ScriptedInstance, config, request
from tests.unit.server.core.sequence_models import CONTROLS, ask, ids, sequences, started, until, value


async def test_requests_of_one_sequence_run_one_by_one_and_of_several_together() -> None:
    model, (worker,) = await started(sequences(4))
    first = ask(model, 1, start=True)
    later = [ask(model, 1), ask(model, 2, start=True), ask(model, 3, start=True, end=True)]
    assert [ids(batch) for batch in worker.batches] == [[1]]
    worker.answer()
    await asyncio.sleep(0)
    assert [sorted(ids(batch)) for batch in worker.batches] == [[1, 2, 3]]
    worker.answer()
    assert all(isinstance(caller.answer, InferResponse) for caller in (first, *later))
    assert model.statistics.execution_count == 2


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"key": 0, "start": True},
            "inference request to model 'm' must specify a non-zero or non-empty correlation ID",
        ),
        (
            {"key": "", "start": True},
            "inference request to model 'm' must specify a non-zero or non-empty correlation ID",
        ),
        (
            {"key": 3},
            (
                "inference request for sequence 3 to model 'm' must specify the START flag on the first request of the "
                "sequence"
            ),
        ),
        (
            {"key": "a", "start": True},
            (
                "[request id: <id_unknown>] sequence batching control 'ID' data-type is 'BYTES', but model 'm' expects "
                "'UINT64': sequence_id must be an unsigned integer"
            ),
        ),
    ],
)
async def test_invalid_sequence_requests_are_rejected(fields: dict[str, object], message: str) -> None:
    model, _ = await started(sequences())
    with pytest.raises(InvalidRequest) as caught:
        ask(model, **fields)
    assert caught.value.message == message


async def test_batch_size_must_be_one() -> None:
    model, _ = await started(sequences())
    with pytest.raises(InvalidRequest, match=r"must specify batch-size 1 due to requirements of sequence batcher$"):
        model.submit(request(2, 2, correlation_id=1, flags=SEQUENCE_START), Caller())


async def test_start_restarts_an_open_sequence_in_its_slot() -> None:
    model, (worker,) = await started(sequences(1))
    ask(model, 1, start=True)
    ask(model, 1, start=True)
    other = ask(model, 2, start=True)
    worker.answer()
    await asyncio.sleep(0)
    assert value(worker.batches[0].executions[0], "START") == 1
    assert ids(worker.batches[0]) == [1]
    assert other.finals == 0


async def test_more_sequences_than_candidates_wait_for_an_end() -> None:
    model, (worker,) = await started(sequences(4, max_candidates=2))
    for key in (1, 2, 3, 4):
        ask(model, key, start=True)
    worker.answer()
    await asyncio.sleep(0)
    assert ids(worker.batches[0]) == [2]
    ask(model, 1, end=True)
    ask(model, 3)
    worker.answer()
    await asyncio.sleep(0)
    assert ids(worker.batches[0]) == [1]
    worker.answer()
    await asyncio.sleep(0)
    assert ids(worker.batches[0]) == [3]


@pytest.mark.parametrize("oldest", [False, True])
@pytest.mark.parametrize("release_first", [False, True])
async def test_sequences_that_have_waited_share_the_next_batch(oldest: bool, release_first: bool) -> None:
    model, (worker,) = await started(sequences(2, oldest=oldest))
    ask(model, 1, start=True)
    ask(model, 1)
    ask(model, 2, start=True)
    worker.answer(release_first=release_first)
    await asyncio.sleep(0)
    assert sorted(ids(worker.batches[0])) == [1, 2]


async def test_direct_places_sequences_by_slot_and_fills_the_others() -> None:
    model, (worker,) = await started(sequences(4, oldest=False))
    for key in (1, 2, 3):
        ask(model, key, start=True)
    worker.answer()
    await asyncio.sleep(0)
    assert ids(worker.batches[0]) == [0, 2, 3]
    ask(model, 3)
    worker.answer()
    await asyncio.sleep(0)
    (batch,) = worker.batches
    assert ids(batch) == [0, 0, 3]
    assert [value(execution, "READY") for execution in batch.executions] == [0, 0, 1]
    assert [value(execution, "START") for execution in batch.executions] == [0, 0, 0]
    assert [value(execution, "ID") for execution in batch.executions] == [0, 0, 3]


async def test_direct_waits_for_enough_slots_or_for_its_delay() -> None:
    delay = 50_000
    model, (worker,) = await started(sequences(4, oldest=False, minimum_slot_utilization=0.5, max_queue_delay_us=delay))
    ask(model, 1, start=True)
    assert not worker.batches
    ask(model, 2, start=True)
    assert ids(worker.batches[0]) == [1, 2]
    worker.answer()
    alone = ask(model, 2)
    began = alone.admitted.queued
    assert not worker.batches
    await until(lambda: worker.batches)
    assert ids(worker.batches[0]) == [0, 2]
    assert monotonic_ns() - began >= delay * 1000


async def test_direct_leaves_another_shape_to_the_next_batch() -> None:
    model, (worker,) = await started(
        config(max_batch_size=4, dims=(-1,), sequence_batching=SequenceBatching(controls=CONTROLS))
    )
    ask(model, 1, start=True)
    caller = Caller()
    for key, size in ((2, 2), (3, 5), (4, 2)):
        model.submit(request(1, size, correlation_id=key, flags=SEQUENCE_START), caller if key == 3 else Caller())
    worker.answer()
    await asyncio.sleep(0)
    assert ids(worker.batches[0]) == [0, 2, 0, 4]
    worker.answer()
    await asyncio.sleep(0)
    assert ids(worker.batches[0]) == [0, 0, 3]
    worker.answer()
    assert isinstance(caller.answer, InferResponse)


async def test_cancelling_one_request_ends_its_sequence_and_frees_the_slot() -> None:
    model, (worker,) = await started(sequences(1))
    ask(model, 1, start=True)
    queued = [ask(model, 1) for _ in range(3)]
    other = ask(model, 2, start=True)
    queued[1].admitted.cancel()
    assert all(isinstance(caller.answer, Cancelled) for caller in queued)
    with pytest.raises(InvalidRequest, match="the one before was ended by the cancellation of a request"):
        ask(model, 1)
    worker.answer()
    await asyncio.sleep(0)
    assert ids(worker.batches[0]) == [2]
    worker.answer()
    assert isinstance(other.answer, InferResponse)
    assert model.statistics.pending == 0


async def test_a_slot_is_not_free_while_a_cancelled_request_is_still_executed() -> None:
    model, (worker,) = await started(sequences(1))
    first = ask(model, 1, start=True)
    ask(model, 2, start=True)
    first.admitted.cancel()
    await asyncio.sleep(0)
    assert [ids(batch) for batch in worker.batches] == [[1]]
    worker.answer()
    await asyncio.sleep(0)
    assert [ids(batch) for batch in worker.batches] == [[2]]


async def test_idle_sequence_ends_and_later_requests_get_the_reason() -> None:
    model, (worker,) = await started(sequences(1, max_idle_us=20_000))
    ask(model, 1, start=True)
    ask(model, 2, start=True)
    worker.answer()
    await until(lambda: worker.batches)
    assert ids(worker.batches[0]) == [2]
    with pytest.raises(InvalidRequest, match="had no request for max_sequence_idle_microseconds"):
        ask(model, 1)


async def test_a_timeout_in_the_backlog_ends_the_whole_sequence() -> None:
    model, _ = await started(sequences(1))
    ask(model, 1, start=True)
    waiting = [ask(model, 2, start=True), ask(model, 2, timeout_us=1000)]
    await until(lambda: waiting[0].finals)
    for caller in waiting:
        assert isinstance(caller.answer, QueueTimeout)
        assert caller.answer.message == "timeout of the corresponding sequence has been expired"
    assert not model.is_open(2)


async def test_the_queue_is_bounded() -> None:
    model, (worker,) = await started(sequences(1), max_queue_size=2)
    for _ in range(3):
        ask(model, 1, start=True)
    with pytest.raises(QueueFull):
        ask(model, 1)
    assert model.refusal(monotonic_ns()) is not None
    worker.answer()
    ask(model, 1)


async def test_death_of_an_instance_ends_its_sequences() -> None:
    model, workers = await started(sequences(1), instances=2)
    first, second = ask(model, 1, start=True), ask(model, 2, start=True)
    queued = ask(model, 1)
    workers[0].die()
    assert isinstance(first.answer, BackendError)
    assert isinstance(queued.answer, Unavailable)
    assert queued.answer.message == ("sequence 1 of model 'm' was lost with its model instance 'm_0'; start it again")
    with pytest.raises(InvalidRequest, match="the one before was lost with its model instance 'm_0'"):
        ask(model, 1)
    workers[1].answer()
    assert isinstance(second.answer, InferResponse)
    restarted = ask(model, 1, start=True)
    assert restarted.finals == 0
    workers[0].recover()
    await asyncio.sleep(0)
    workers[0].answer()
    assert isinstance(restarted.answer, InferResponse)


async def test_sequence_stays_on_its_instance() -> None:
    model, workers = await started(sequences(2), instances=2)
    ask(model, 1, start=True)
    ask(model, 2, start=True)
    workers[1].answer()
    ask(model, 1)
    await asyncio.sleep(0)
    assert [[ids(batch) for batch in worker.batches] for worker in workers] == [[[1]], []]


def reschedule(worker: ScriptedInstance) -> None:
    """Have all requests of the oldest batch come again."""
    batch = worker.batches.pop(0)
    batch.release()
    for execution in batch.executions:
        execution.reschedule()


async def test_iterative_request_is_rescheduled_until_it_is_answered() -> None:
    model, (worker,) = await started(sequences(2, iterative=True))
    caller = Caller()
    model.submit(request(1, 2), caller)
    starts = []
    for _ in range(3):
        starts.append(value(worker.batches[0].executions[0], "START"))
        reschedule(worker)
        await asyncio.sleep(0)
    other = Caller()
    model.submit(request(1, 2), other)
    worker.answer()
    await asyncio.sleep(0)
    assert starts == [1, 0, 0]
    assert isinstance(caller.answer, InferResponse)
    worker.answer()
    assert isinstance(other.answer, InferResponse)
    assert model.statistics.pending == 0


@pytest.mark.parametrize("released", [False, True])
async def test_an_iterative_request_can_be_cancelled_between_two_turns(released: bool) -> None:
    model, (worker,) = await started(sequences(1, iterative=True))
    caller, other = Caller(), Caller()
    admitted = model.submit(request(1, 2), caller)
    model.submit(request(1, 2), other)
    (batch,) = worker.batches
    worker.batches.clear()
    if released:
        batch.release()
        batch.executions[0].reschedule()
        admitted.cancel()
    else:
        batch.executions[0].reschedule()
        admitted.cancel()
        batch.release()
    assert isinstance(caller.answer, Cancelled)
    await asyncio.sleep(0)
    worker.answer()
    assert isinstance(other.answer, InferResponse)


async def test_preserve_ordering_follows_the_order_of_execution() -> None:
    model, (worker,) = await started(sequences(1, max_candidates=2, preserve_ordering=True))
    worker.holds_ahead = 1
    first, second = ask(model, 1, start=True), ask(model, 2, start=True)
    await asyncio.sleep(0)
    assert [ids(batch) for batch in worker.batches] == [[1], [2]]
    worker.batches.reverse()
    worker.answer()
    assert (first.finals, second.finals) == (0, 0)
    worker.answer()
    assert (first.finals, second.finals) == (1, 1)


async def test_replaced_version_drains_after_its_sequences() -> None:
    old, (old_worker,) = await started(sequences())
    new, (new_worker,) = await started(sequences())
    ask(old, 1, start=True)
    old_worker.answer()
    new.take_over(old)
    drained = asyncio.ensure_future(old.drain())
    continued = ask(new, 1)
    ask(new, 2, start=True)
    old_worker.answer()
    new_worker.answer()
    assert isinstance(continued.answer, InferResponse)
    await asyncio.sleep(0)
    assert not drained.done()
    ask(new, 1, end=True)
    old_worker.answer()
    await asyncio.wait_for(drained, 60)
    with pytest.raises(InvalidRequest):
        ask(new, 1)


async def test_sequence_survives_several_replacements_of_its_version() -> None:
    models, workers = zip(*[await started(sequences()) for _ in range(3)], strict=True)
    ask(models[0], 1, start=True)
    workers[0][0].answer()
    drained = []
    for old, new in pairwise(models):
        new.take_over(old)
        drained.append(asyncio.ensure_future(old.drain()))
    await asyncio.wait_for(drained[1], 60)  # no sequence has begun there
    continued = ask(models[2], 1)
    workers[0][0].answer()
    assert isinstance(continued.answer, InferResponse)
    assert not drained[0].done()
    ask(models[2], 1, end=True)
    workers[0][0].answer()
    await asyncio.wait_for(drained[0], 60)


async def test_drain_of_the_last_version_ends_sequences_of_replaced_versions() -> None:
    batching = sequences(1, max_idle_us=3_600_000_000)
    old, (old_worker,) = await started(batching)
    new, _ = await started(batching)
    ask(old, 1, start=True)
    old_worker.answer()
    new.take_over(old)
    drained = asyncio.ensure_future(old.drain())
    await asyncio.sleep(0)
    assert not drained.done()
    await asyncio.wait_for(new.drain(), 60)
    await asyncio.wait_for(drained, 60)


async def test_drain_does_not_wait_for_idle_sequences() -> None:
    model, (worker,) = await started(sequences(1, max_idle_us=3_600_000_000))
    ask(model, 1, start=True)
    waiting = ask(model, 2, start=True)
    drained = asyncio.ensure_future(model.drain())
    worker.answer()
    await until(lambda: worker.batches)
    worker.answer()
    assert isinstance(waiting.answer, InferResponse)
    await asyncio.wait_for(drained, 60)


async def test_stop_fails_waiting_requests() -> None:
    model, (worker,) = await started(sequences(1))
    ask(model, 1, start=True)
    waiting = [ask(model, 1), ask(model, 2, start=True)]
    await model.stop()
    assert all(isinstance(caller.answer, Unavailable) for caller in waiting)
    assert worker.stopped


ACTIONS = ["start", "continue", "end", "cancel", "answer", "fail", "reschedule", "die", "recover", "turn"]


@pytest.mark.slow
@settings(max_examples=150)
@given(st.lists(st.sampled_from(ACTIONS), max_size=60), st.booleans(), st.booleans(), st.data())
def test_every_request_ends_once_in_the_order_of_its_sequence(
    actions: list[str], oldest: bool, iterative: bool, data: st.DataObject
) -> None:
    async def scenario() -> None:
        model, workers = await started(sequences(2, oldest=oldest, iterative=iterative), instances=2)
        places: dict[object, set[int]] = {}
        executed: dict[object, list[int]] = {}

        def look(number: int) -> None:
            """Note what a worker holds next, and answer nothing."""
            for execution in workers[number].batches[0].executions:
                mark = execution.request.parameters.get("mark")
                if mark is not None:
                    sequence = execution.request.parameters["sequence"]
                    places.setdefault(sequence, set()).add(number)
                    executed.setdefault(sequence, []).append(mark)

        for worker in workers:
            worker.holds_ahead = data.draw(st.integers(0, 1))
        callers: list[Caller] = []
        begun: dict[int, int] = {}
        for mark, action in enumerate(actions):
            number = data.draw(st.sampled_from([0, 1]))
            worker = workers[number]
            if action in ("start", "continue", "end"):
                key = data.draw(st.integers(1, 6))
                if action == "start" and not model.is_open(key):
                    begun[key] = mark
                if (action == "start" or model.is_open(key)) and model.ready:
                    parameters = {"mark": mark, "sequence": begun[key]}
                    callers.append(ask(model, key, start=action == "start", end=action == "end", parameters=parameters))
            elif action == "cancel" and callers:
                data.draw(st.sampled_from(callers)).admitted.cancel()
            elif action in ("answer", "fail") and worker.batches:
                look(number)
                getattr(worker, action)()
            elif action == "reschedule" and iterative and worker.batches:
                reschedule(worker)
            elif action == "die" and worker.is_ready:
                worker.die()
            elif action == "recover" and not worker.is_ready:
                worker.recover()
            elif action == "turn":
                await asyncio.sleep(0)
            held = [e.request.parameters.get("sequence") for w in workers for b in w.batches for e in b.executions]
            real = [sequence for sequence in held if sequence is not None]
            assert len(real) == len(set(real)), "two requests of one sequence at a time"
        for worker in workers:
            if not worker.is_ready:
                worker.recover()
        await asyncio.sleep(0)
        while any(worker.batches for worker in workers):
            for number, worker in enumerate(workers):
                if worker.batches:
                    look(number)
                    worker.answer()
            await asyncio.sleep(0)
        assert [caller.finals for caller in callers] == [1] * len(callers)
        assert all(marks == sorted(marks) for marks in executed.values())
        assert all(len(numbers) == 1 for numbers in places.values())
        statistics = model.statistics
        assert statistics.success.count + statistics.fail.count == len(callers)
        assert statistics.pending == 0
        await model.drain()
        await model.stop()

    asyncio.run(scenario())
