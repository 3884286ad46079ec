"""Controls and implicit state of sequences, as instances get them."""

import asyncio
import os
from pathlib import Path
from time import monotonic_ns

import numpy as np
import pytest

from conch.base.errors import BackendError, ConchError
from conch.domain.model_config import ControlKind, SequenceControl, SequenceState
from conch.domain.request import InferResponse
from conch.domain.tensor import Tensor, pack_bytes
from conch.server.core.sequences.sequence_model import SequenceModel
from conch.server.core.sequences.tensors import instance_config
from tests.unit.server.core.scripted import ScriptedInstance
from tests.unit.server.core.sequence_models import ask, ids, sequences, started, value

STATE = SequenceState("STATE_IN", "STATE_OUT", "INT32", (-1,), (1,))


async def test_controls_mark_start_end_and_id() -> None:
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
            sent = execution.request.outputs
            outputs = [tensor for tensor in outputs if not sent or tensor.name in sent]
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
async def test_state_passes_to_the_next_request_of_a_sequence(outputs: tuple[str, ...]) -> None:
    model, worker = await accumulating()
    got = []
    for key, start in ((1, True), (2, True), (1, False), (2, False), (1, False), (2, True)):
        caller = ask(model, key, start=start, outputs=outputs)
        worker.answer()
        assert isinstance(caller.answer, InferResponse)
        assert [tensor.name for tensor in caller.answer.outputs] == ["OUT"]
        got.append(caller.answer.outputs[0].to_numpy().item())
    assert got == [1, 1, 2, 2, 3, 1]


async def test_initial_state_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "initial_state").mkdir()
    (tmp_path / "initial_state" / "begin").write_bytes(np.array([10, 20], np.int32).tobytes())
    state = SequenceState("STATE_IN", "STATE_OUT", "INT32", (-1,), (2,), "begin")
    model, worker = await accumulating(states=(state,), directory=tmp_path)
    caller = ask(model, 1, start=True)
    worker.answer()
    assert isinstance(caller.answer, InferResponse)
    assert caller.answer.outputs[0].to_numpy().tolist() == [[11, 21]]


@pytest.mark.parametrize(("content", "message"), [(None, "No such file"), (b"123", "expects 8 bytes, but the data")])
async def test_invalid_file_of_initial_state_fails_the_load(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    (tmp_path / "initial_state").mkdir()
    if content is not None:
        (tmp_path / "initial_state" / "begin").write_bytes(content)
    state = SequenceState("STATE_IN", "STATE_OUT", "INT32", (-1,), (2,), "begin")
    with pytest.raises(ConchError, match=message):
        await accumulating(states=(state,), directory=tmp_path)


@pytest.mark.parametrize("name", ["/etc/passwd", "../../secret", "link", "pipe"])
async def test_initial_state_outside_the_model_folder_is_rejected(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_bytes(bytes(8))
    folder = tmp_path / "m" / "initial_state"
    folder.mkdir(parents=True)
    (folder / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(folder / "pipe")
    state = SequenceState("STATE_IN", "STATE_OUT", "INT32", (-1,), (2,), name)
    message = f"initial_state.data_file '{name}' of state 'STATE_IN' (leads out of|is not a regular file)"
    with pytest.raises(ConchError, match=message):
        await accumulating(states=(state,), directory=tmp_path / "m")


async def test_state_of_a_wrong_shape_is_an_error_and_is_not_stored() -> None:
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
