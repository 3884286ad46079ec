"""A sequence model between its clients and its instances: order, place, end, and every request answered once."""

import asyncio
import os
from itertools import pairwise
from pathlib import Path
from time import monotonic_ns

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conch.backends.batch import Batch, Execution
from conch.core.sequences.sequence_model import SequenceModel
from conch.core.sequences.tensors import instance_config
from conch.errors import BackendError, Cancelled, ConchError, InvalidRequest, QueueFull, QueueTimeout, Unavailable
from conch.model_config import ControlKind, ModelConfig, SequenceBatching, SequenceControl, SequenceState
from conch.request import SEQUENCE_END, SEQUENCE_START, InferResponse
from conch.tensor import Tensor, pack_bytes
from tests.unit.core.scripted import Caller, ScriptedInstance, config, request

FALSE, TRUE = b"\0\0\0\0", b"\1\0\0\0"
CONTROLS = (
    SequenceControl(ControlKind.START, "START", "INT32", FALSE, TRUE),
    SequenceControl(ControlKind.END, "END", "INT32", FALSE, TRUE),
    SequenceControl(ControlKind.READY, "READY", "INT32", FALSE, TRUE),
    SequenceControl(ControlKind.CORRID, "ID", "UINT64"),
)
STATE = SequenceState("STATE_IN", "STATE_OUT", "INT32", (-1,), (1,))


def sequences(max_batch_size: int = 4, **fields: object) -> ModelConfig:
    fields.setdefault("oldest", True)
    fields.setdefault("controls", CONTROLS)
    return config(max_batch_size=max_batch_size, sequence_batching=SequenceBatching(**fields))


async def started(
    model_config: ModelConfig, instances: int = 1, **options: object
) -> tuple[SequenceModel, list[ScriptedInstance]]:
    workers = [ScriptedInstance() for _ in range(instances)]
    model = SequenceModel(model_config, 1, {}, workers, asyncio.get_running_loop(), Path("m"), **options)
    await model.start()
    return model, workers


def ask(model: SequenceModel, key: int | str, *, start: bool = False, end: bool = False, **fields: object) -> Caller:
    """Submit one request; the caller has it as `admitted`."""
    caller = Caller()
    flags = start * SEQUENCE_START + end * SEQUENCE_END
    caller.admitted = model.submit(request(1, 2, correlation_id=key, flags=flags, **fields), caller)
    return caller


def ids(batch: Batch) -> list[int | str]:
    return [execution.request.correlation_id for execution in batch.executions]


def value(execution: Execution, name: str) -> object:
    tensor = execution.request.input(name)
    assert tensor is not None
    return tensor.to_numpy().ravel()[0]


async def until(done: object) -> None:
    async with asyncio.timeout(20):
        while not done():
            await asyncio.sleep(0.001)


async def test_the_requests_of_a_sequence_run_one_by_one_and_those_of_several_together() -> None:
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


async def test_controls_tell_where_in_its_sequence_a_request_is() -> None:
    model, (worker,) = await started(sequences())
    ask(model, 7, start=True)
    ask(model, 7)
    ask(model, 7, end=True)
    ask(model, 8, start=True, end=True)
    seen = []
    while worker.batches:
        seen += [
            [value(execution, name) for name in ("START", "END", "READY", "ID")]
            for execution in worker.batches[0].executions
        ]
        worker.answer()
        await asyncio.sleep(0)
    assert sorted(seen) == sorted([[1, 0, 1, 7], [1, 1, 1, 8], [0, 0, 1, 7], [0, 1, 1, 7]])
    assert [spec.name for spec in instance_config(model.config).inputs] == ["IN", "START", "END", "READY", "ID"]


@pytest.mark.parametrize(
    ("datatype", "given", "data"),
    [
        ("UINT64", 2**64 - 1, b"\xff" * 8),
        ("INT64", 5, b"\5" + bytes(7)),
        ("UINT32", 2**32 + 3, b"\3\0\0\0"),
        ("INT32", 2**31, b"\0\0\0\x80"),
        ("BYTES", "frère", pack_bytes(["frère"])),
    ],
)
async def test_an_id_of_each_datatype(datatype: str, given: int | str, data: bytes) -> None:
    control = SequenceControl(ControlKind.CORRID, "ID", datatype)
    model, (worker,) = await started(sequences(controls=(control,)))
    ask(model, given, start=True)
    tensor = worker.batches[0].executions[0].request.input("ID")
    assert tensor is not None
    assert (tensor.datatype, tensor.shape, tensor.data) == (datatype, (1, 1), data)


@pytest.mark.parametrize(
    ("fields", "said"),
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
async def test_what_is_no_sequence_is_refused(fields: dict[str, object], said: str) -> None:
    model, _ = await started(sequences())
    with pytest.raises(InvalidRequest) as caught:
        ask(model, **fields)
    assert caught.value.message == said


async def test_a_request_is_one_item() -> None:
    model, _ = await started(sequences())
    with pytest.raises(InvalidRequest, match=r"must specify batch-size 1 due to requirements of sequence batcher$"):
        model.submit(request(2, 2, correlation_id=1, flags=SEQUENCE_START), Caller())


async def test_start_of_a_live_sequence_starts_it_again_in_its_slot() -> None:
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


async def test_direct_gives_each_sequence_its_place_and_fills_the_others() -> None:
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


async def test_an_idle_sequence_loses_its_slot_and_whoever_goes_on_is_told() -> None:
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
    assert not model.goes_on(2)


async def test_the_queue_is_bounded() -> None:
    model, (worker,) = await started(sequences(1), max_queue_size=2)
    for _ in range(3):
        ask(model, 1, start=True)
    with pytest.raises(QueueFull):
        ask(model, 1)
    assert model.refusal(monotonic_ns()) is not None
    worker.answer()
    ask(model, 1)


async def test_a_dead_instance_takes_its_sequences_with_it() -> None:
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


async def test_a_sequence_keeps_to_its_instance() -> None:
    model, workers = await started(sequences(2), instances=2)
    ask(model, 1, start=True)
    ask(model, 2, start=True)
    workers[1].answer()
    ask(model, 1)
    await asyncio.sleep(0)
    assert [[ids(batch) for batch in worker.batches] for worker in workers] == [[[1]], []]


class Accumulator(ScriptedInstance):
    """Adds 1 to the state of each request, and answers with it."""

    def __init__(self) -> None:
        super().__init__()
        self.shape: tuple[int, ...] | None = None

    def answer(self) -> None:
        batch = self.batches.pop(0)
        batch.input_done = batch.infer_done = monotonic_ns()
        for execution in batch.executions:
            before = execution.request.input("STATE_IN")
            assert before is not None
            after = before.to_numpy() + np.int32(1)
            if self.shape is not None:
                after = np.zeros(self.shape, np.int32)
            outputs = [Tensor.from_numpy(name, after) for name in ("OUT", "STATE_OUT")]
            asked = execution.request.outputs
            outputs = [tensor for tensor in outputs if not asked or tensor.name in asked]
            execution.finish(InferResponse("m", 1, outputs))
        batch.release()


async def accumulating(**fields: object) -> tuple[SequenceModel, Accumulator]:
    fields.setdefault("states", (STATE,))
    worker = Accumulator()
    directory = fields.pop("directory", Path("m"))
    model = SequenceModel(sequences(2, **fields), 1, {}, [worker], asyncio.get_running_loop(), directory)
    await model.start()
    return model, worker


@pytest.mark.parametrize("outputs", [(), ("OUT",)])
async def test_state_goes_from_one_request_of_a_sequence_to_the_next(outputs: tuple[str, ...]) -> None:
    model, worker = await accumulating()
    got = []
    for key, start in ((1, True), (2, True), (1, False), (2, False), (1, False), (2, True)):
        caller = ask(model, key, start=start, outputs=outputs)
        worker.answer()
        assert isinstance(caller.answer, InferResponse)
        assert [tensor.name for tensor in caller.answer.outputs] == ["OUT"]
        got.append(caller.answer.outputs[0].to_numpy().item())
    assert got == [1, 1, 2, 2, 3, 1]


async def test_a_sequence_begins_with_the_state_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "initial_state").mkdir()
    (tmp_path / "initial_state" / "begin").write_bytes(np.array([10, 20], np.int32).tobytes())
    state = SequenceState("STATE_IN", "STATE_OUT", "INT32", (-1,), (2,), "begin")
    model, worker = await accumulating(states=(state,), directory=tmp_path)
    caller = ask(model, 1, start=True)
    worker.answer()
    assert isinstance(caller.answer, InferResponse)
    assert caller.answer.outputs[0].to_numpy().tolist() == [[11, 21]]


@pytest.mark.parametrize(("content", "said"), [(None, "No such file"), (b"123", "expects 8 bytes, but the data")])
async def test_a_wrong_file_of_initial_state_fails_the_load(tmp_path: Path, content: bytes | None, said: str) -> None:
    (tmp_path / "initial_state").mkdir()
    if content is not None:
        (tmp_path / "initial_state" / "begin").write_bytes(content)
    state = SequenceState("STATE_IN", "STATE_OUT", "INT32", (-1,), (2,), "begin")
    with pytest.raises(ConchError, match=said):
        await accumulating(states=(state,), directory=tmp_path)


@pytest.mark.parametrize("name", ["/etc/passwd", "../../secret", "link", "pipe"])
async def test_an_initial_state_comes_from_the_folder_of_the_model(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_bytes(bytes(8))
    folder = tmp_path / "m" / "initial_state"
    folder.mkdir(parents=True)
    (folder / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(folder / "pipe")
    state = SequenceState("STATE_IN", "STATE_OUT", "INT32", (-1,), (2,), name)
    said = f"initial_state.data_file '{name}' of state 'STATE_IN' (leads out of|is not a regular file)"
    with pytest.raises(ConchError, match=said):
        await accumulating(states=(state,), directory=tmp_path / "m")


async def test_state_of_a_wrong_shape_is_an_error_and_is_not_kept() -> None:
    state = SequenceState("STATE_IN", "STATE_OUT", "INT32", (1,), (1,))
    model, worker = await accumulating(states=(state,))
    worker.shape = (1, 2)
    wrong = ask(model, 1, start=True)
    worker.answer()
    assert isinstance(wrong.answer, BackendError)
    assert wrong.answer.message == (
        "model 'm' gave state 'STATE_OUT' as INT32[1, 2], sequence_batching.state declares INT32[1, 1]"
    )
    worker.shape = None
    right = ask(model, 1)
    worker.answer()
    assert isinstance(right.answer, InferResponse)
    assert right.answer.outputs[0].to_numpy().item() == 1


async def test_sequences_whose_states_differ_in_shape_do_not_share_a_batch() -> None:
    model, worker = await accumulating()
    worker.shape = (1, 3)
    ask(model, 1, start=True)
    worker.answer()
    worker.shape = None
    ask(model, 2, start=True)
    ask(model, 1)
    worker.answer()
    ask(model, 2)
    await asyncio.sleep(0)
    assert [ids(batch) for batch in worker.batches] == [[1]]


def reschedule(worker: ScriptedInstance) -> None:
    """Have all requests of the oldest batch come again."""
    batch = worker.batches.pop(0)
    batch.release()
    for execution in batch.executions:
        execution.reschedule()


async def test_an_iterative_model_has_a_request_until_it_answers() -> None:
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


async def test_ordered_responses_leave_in_the_order_of_execution() -> None:
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


async def test_a_replaced_version_keeps_its_sequences_until_they_end() -> None:
    old, (old_worker,) = await started(sequences())
    new, (new_worker,) = await started(sequences())
    ask(old, 1, start=True)
    old_worker.answer()
    new.take_over(old)
    drained = asyncio.ensure_future(old.drain())
    going_on = ask(new, 1)
    ask(new, 2, start=True)
    old_worker.answer()
    new_worker.answer()
    assert isinstance(going_on.answer, InferResponse)
    await asyncio.sleep(0)
    assert not drained.done()
    ask(new, 1, end=True)
    old_worker.answer()
    await asyncio.wait_for(drained, 20)
    with pytest.raises(InvalidRequest):
        ask(new, 1)


async def test_a_sequence_outlives_several_replacements_of_its_version() -> None:
    models, workers = zip(*[await started(sequences()) for _ in range(3)], strict=True)
    ask(models[0], 1, start=True)
    workers[0][0].answer()
    drained = []
    for old, new in pairwise(models):
        new.take_over(old)
        drained.append(asyncio.ensure_future(old.drain()))
    await asyncio.wait_for(drained[1], 20)  # no sequence has begun there
    going_on = ask(models[2], 1)
    workers[0][0].answer()
    assert isinstance(going_on.answer, InferResponse)
    assert not drained[0].done()
    ask(models[2], 1, end=True)
    workers[0][0].answer()
    await asyncio.wait_for(drained[0], 20)


async def test_when_the_last_version_goes_nobody_waits_for_sequences_of_those_before() -> None:
    batching = sequences(1, max_idle_us=3_600_000_000)
    old, (old_worker,) = await started(batching)
    new, _ = await started(batching)
    ask(old, 1, start=True)
    old_worker.answer()
    new.take_over(old)
    drained = asyncio.ensure_future(old.drain())
    await asyncio.sleep(0)
    assert not drained.done()
    await asyncio.wait_for(new.drain(), 20)
    await asyncio.wait_for(drained, 20)


async def test_a_drain_does_not_wait_for_sequences_that_nobody_can_go_on_with() -> None:
    model, (worker,) = await started(sequences(1, max_idle_us=3_600_000_000))
    ask(model, 1, start=True)
    waiting = ask(model, 2, start=True)
    drained = asyncio.ensure_future(model.drain())
    worker.answer()
    await until(lambda: worker.batches)
    worker.answer()
    assert isinstance(waiting.answer, InferResponse)
    await asyncio.wait_for(drained, 20)


async def test_stop_answers_what_still_waits() -> None:
    model, (worker,) = await started(sequences(1))
    ask(model, 1, start=True)
    waiting = [ask(model, 1), ask(model, 2, start=True)]
    await model.stop()
    assert all(isinstance(caller.answer, Unavailable) for caller in waiting)
    assert worker.stopped


ACTIONS = ["start", "go on", "end", "cancel", "answer", "fail", "reschedule", "die", "recover", "turn"]


@settings(max_examples=150, deadline=None)
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
            if action in ("start", "go on", "end"):
                key = data.draw(st.integers(1, 6))
                if action == "start" and not model.goes_on(key):
                    begun[key] = mark
                if (action == "start" or model.goes_on(key)) and model.ready:
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
