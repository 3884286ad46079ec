"""Running models: batches, outputs, shapes, failures, and the life of an instance."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from conch.base.errors import BackendError, Code, ModelLoadError
from conch.domain.tensor import Tensor
from conch.server.backends.batch import Batch
from conch.server.backends.onnxruntime import backend
from conch.server.backends.onnxruntime.backend import OnnxRuntimeBackend
from tests.server.backends.driving import Asked, answers, complete, plan, request, started
from tests.server.backends.onnxruntime.onnx_models import FP32, write_identity, write_model


def fp32(*rows: object, name: str = "IN") -> Tensor:
    return Tensor.from_numpy(name, np.array(rows, np.float32))


SUMS_CONFIG = (
    'max_batch_size: 8 input [{ name: "A" data_type: TYPE_FP32 dims: 2 }, { name: "B" data_type: TYPE_FP32 dims: 2 }] '
    'output [{ name: "SUM" data_type: TYPE_FP32 dims: 2 }, { name: "DIFFERENCE" data_type: TYPE_FP32 dims: 2 }] '
)


def write_sums(directory: Path, batch: int | str = "n", config: str | None = None) -> Path:
    """SUM = A + B, DIFFERENCE = A - B."""
    nodes = [helper.make_node("Add", ["A", "B"], ["SUM"]), helper.make_node("Sub", ["A", "B"], ["DIFFERENCE"])]
    kind = (FP32, [batch, 2])
    return write_model(directory, nodes, {"A": kind, "B": kind}, {"SUM": kind, "DIFFERENCE": kind}, config=config)


def write_lookup(directory: Path) -> Path:
    """OUT = one of three rows by index; an index of 3 or more fails."""
    rows = numpy_helper.from_array(np.array([[1.0], [2.0], [3.0]], np.float32), "ROWS")
    return write_model(
        directory,
        [helper.make_node("Gather", ["ROWS", "INDEX"], ["OUT"])],
        {"INDEX": (TensorProto.INT64, ["n"])},
        {"OUT": (FP32, ["n", 1])},
        initializers=[rows],
        config='max_batch_size: 8 input { name: "INDEX" data_type: TYPE_INT64 dims: 1 reshape { } } '
        'output { name: "OUT" data_type: TYPE_FP32 dims: 1 }',
    )


def index(value: int) -> Tensor:
    # What the core's reshape makes of the client's [1, 1].
    return Tensor.from_numpy("INDEX", np.array([value], np.int64))


@pytest.mark.parametrize("largest", [0, 2**28])
async def test_batches_whole_and_in_parts_have_the_same_answers(
    largest: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above the limit for a second session, the parts run in the first."""
    monkeypatch.setattr(backend, "_MAX_TWICE_BYTES", largest)
    config = SUMS_CONFIG + 'parameters { key: "intra_op_thread_count" value { string_value: "2" } }'
    instance = await started(write_sums(tmp_path / "m", config=config))
    # The first is whole, half of the next ones as soon as their session is open.
    for turn in range(12):
        asked = [request(fp32([turn, row], name="A"), fp32([10, 20], name="B")) for row in range(3)]
        sums = [answer.output("SUM").to_numpy().tolist() for answer in await answers(instance, *asked)]
        assert sums == [[[turn + 10, row + 20]] for row in range(3)]
    await instance.stop()


async def test_requests_of_several_sizes_share_a_run(tmp_path: Path) -> None:
    instance = await started(write_sums(tmp_path / "m"))
    asked = [
        request(fp32([1, 2], name="A"), fp32([10, 20], name="B"), id="a"),
        request(fp32([3, 4], [5, 6], name="A"), fp32([1, 1], [2, 2], name="B"), batch_size=2, id="b"),
        # The order of the inputs is the client's own.
        request(fp32([0, 0], name="B"), fp32([7, 8], name="A"), id="c"),
    ]
    got = await answers(instance, *asked)
    await instance.stop()
    assert [answer.id for answer in got] == ["a", "b", "c"]
    assert [[output.name for output in answer.outputs] for answer in got] == [["SUM", "DIFFERENCE"]] * 3
    sums = [answer.output("SUM").to_numpy().tolist() for answer in got]
    assert sums == [[[11, 22]], [[4, 5], [7, 8]], [[7, 8]]]
    assert got[1].output("DIFFERENCE").to_numpy().tolist() == [[2, 3], [3, 4]]
    assert (got[0].model_name, got[0].model_version) == ("m", 1)


async def test_each_request_gets_the_outputs_that_it_asked_for(tmp_path: Path) -> None:
    instance = await started(write_sums(tmp_path / "m"))
    inputs = (fp32([1, 2], name="A"), fp32([3, 4], name="B"))
    asked = [request(*inputs, outputs=("DIFFERENCE",)), request(*inputs, outputs=("SUM",)), request(*inputs)]
    alone = await answers(instance, asked[0])
    together = await answers(instance, *asked)
    await instance.stop()
    names = [[output.name for output in answer.outputs] for answer in alone + together]
    assert names == [["DIFFERENCE"], ["DIFFERENCE"], ["SUM"], ["SUM", "DIFFERENCE"]]


async def test_only_declared_outputs_are_given(tmp_path: Path) -> None:
    config = (
        'input { name: "A" data_type: TYPE_FP32 dims: [ 1, 2 ] } '
        'input { name: "B" data_type: TYPE_FP32 dims: [ 1, 2 ] } '
        'output { name: "SUM" data_type: TYPE_FP32 dims: [ 1, 2 ] }'
    )
    instance = await started(write_sums(tmp_path / "m", 1, config))
    (answer,) = await answers(instance, request(fp32([1, 2], name="A"), fp32([3, 4], name="B")))
    await instance.stop()
    assert [output.name for output in answer.outputs] == ["SUM"]


async def test_a_model_without_batch_dimension(tmp_path: Path) -> None:
    instance = await started(write_identity(tmp_path / "m", FP32, [3]))
    assert instance.plan.source.config.max_batch_size == 0
    (answer,) = await answers(instance, request(fp32(1, 2, 3)))
    await instance.stop()
    assert answer.outputs[0].shape == (3,)


async def test_shapes_may_change_from_run_to_run(tmp_path: Path) -> None:
    instance = await started(write_identity(tmp_path / "m", FP32, ["n", "height", "width"]))
    for shape in [(1, 2, 3), (2, 5, 1), (1, 1, 1)]:
        tensor = Tensor.from_numpy("IN", np.zeros(shape, np.float32))
        (answer,) = await answers(instance, request(tensor, batch_size=shape[0]))
        assert answer.outputs[0].shape == shape
    await instance.stop()


async def test_scalars_are_one_element_to_the_client(tmp_path: Path) -> None:
    instance = await started(write_identity(tmp_path / "m", FP32, []))
    assert instance.plan.source.config.inputs[0].dims == (1,)
    (answer,) = await answers(instance, request(fp32(7)))
    await instance.stop()
    assert (answer.outputs[0].shape, answer.outputs[0].to_numpy().tolist()) == ((1,), [7])


async def test_an_output_that_is_not_per_item_is_named(tmp_path: Path) -> None:
    node = helper.make_node("ReduceSum", ["IN"], ["OUT"], keepdims=0)
    # The file leaves the rank of OUT open as far as the configuration can tell.
    write_model(tmp_path / "m", [node], {"IN": (FP32, ["n", 2])}, {"OUT": (FP32, [])})
    config = (
        'max_batch_size: 4 input { name: "IN" data_type: TYPE_FP32 dims: 2 } '
        'output { name: "OUT" data_type: TYPE_FP32 dims: 1 reshape { } }'
    )
    (tmp_path / "m" / "config.pbtxt").write_text(config)
    instance = await started(tmp_path / "m")
    (answer,) = await answers(instance, request(fp32([1, 2], [3, 4]), batch_size=2))
    await instance.stop()
    assert isinstance(answer, BackendError)
    assert answer.message.startswith(
        "output 'OUT' has shape [] for a batch of 2: its first dimension must be the batch"
    )


async def test_a_failure_has_onnxruntimes_code_and_names_the_instance(tmp_path: Path) -> None:
    instance = await started(write_lookup(tmp_path / "m"))
    (answer,) = await answers(instance, request(index(9)))
    await instance.stop()
    assert isinstance(answer, BackendError)
    assert answer.message.startswith("onnx runtime error 2: ")
    assert "indices element out of data bounds, idx=9" in answer.message
    assert answer.message.endswith("(instance 'm_0')")
    assert answer.code is Code.INVALID_ARG


async def test_a_request_fails_without_its_neighbours(tmp_path: Path) -> None:
    instance = await started(write_lookup(tmp_path / "m"))
    got = await answers(instance, *(request(index(value)) for value in (0, 9, 2)))
    await instance.stop()
    assert isinstance(got[1], BackendError)
    assert [got[n].outputs[0].to_numpy().tolist() for n in (0, 2)] == [[[1]], [[3]]]


async def test_an_instance_works_on_after_a_failure(tmp_path: Path) -> None:
    instance = await started(write_lookup(tmp_path / "m"))
    await answers(instance, request(index(9)))
    assert instance.ready
    (answer,) = await answers(instance, request(index(1)))
    await instance.stop()
    assert answer.outputs[0].to_numpy().tolist() == [[2]]


async def test_stopping_lets_the_running_batch_finish(tmp_path: Path) -> None:
    instance = await started(write_identity(tmp_path / "m", FP32, ["n", 1]))
    asked = Asked(request(fp32([1])))
    released = asyncio.Event()
    instance.execute(Batch([asked], lambda _: released.set()))
    await asyncio.gather(instance.stop(), instance.stop())
    assert asked.answer is not None
    assert released.is_set()
    assert not instance.ready


async def test_stopping_what_was_never_started(tmp_path: Path) -> None:
    config = await complete(write_identity(tmp_path / "m", FP32, [1]))
    await OnnxRuntimeBackend().instance(plan(tmp_path / "m", config)).stop()


async def test_an_instance_whose_start_was_cancelled_can_be_stopped(tmp_path: Path) -> None:
    config = await complete(write_identity(tmp_path / "m", FP32, [1]))
    instance = OnnxRuntimeBackend().instance(plan(tmp_path / "m", config))
    starting = asyncio.create_task(instance.start())
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await instance.stop()
    assert not instance.ready


async def test_a_missing_file_is_named(tmp_path: Path) -> None:
    directory = write_identity(tmp_path / "m", FP32, [1])
    config = await complete(directory)
    (directory / "1" / "model.onnx").unlink()
    instance = OnnxRuntimeBackend().instance(plan(directory, config))
    with pytest.raises(ModelLoadError) as raised:
        await instance.start()
    assert raised.value.message == f"unable to find '{directory}/1/model.onnx' for model instance 'm_0'"
    assert raised.value.code is Code.UNAVAILABLE
    await instance.stop()


async def test_a_broken_file_is_named(tmp_path: Path) -> None:
    directory = write_identity(tmp_path / "m", FP32, [1])
    config = await complete(directory)
    (directory / "1" / "model.onnx").write_bytes(b"not a model")
    instance = OnnxRuntimeBackend().instance(plan(directory, config))
    with pytest.raises(ModelLoadError, match=r"^onnx runtime error 7: .*m/1/model\.onnx"):
        await instance.start()
    await instance.stop()


async def test_a_model_may_be_a_directory(tmp_path: Path) -> None:
    node = helper.make_node("Identity", ["IN"], ["OUT"])
    kind = {"IN": (FP32, ["n", 1])}, {"OUT": (FP32, ["n", 1])}
    directory = write_model(tmp_path / "m", [node], *kind, filename="1/model.onnx/model.onnx")
    instance = await started(directory)
    (answer,) = await answers(instance, request(fp32([4])))
    await instance.stop()
    assert answer.outputs[0].to_numpy().tolist() == [[4]]


async def test_optional_inputs_are_defaults_of_the_model(tmp_path: Path) -> None:
    default = numpy_helper.from_array(np.array([5], np.float32), "BIAS")
    write_model(
        tmp_path / "m",
        [helper.make_node("Add", ["IN", "BIAS"], ["OUT"])],
        {"IN": (FP32, [1]), "BIAS": (FP32, [1])},
        {"OUT": (FP32, [1])},
        initializers=[default],
        config='input { name: "IN" data_type: TYPE_FP32 dims: 1 } output { name: "OUT" data_type: TYPE_FP32 dims: 1 } '
        'input { name: "BIAS" data_type: TYPE_FP32 dims: 1 optional: true }',
    )
    instance = await started(tmp_path / "m")
    without, with_it = [
        (await answers(instance, request(*tensors)))[0].outputs[0].to_numpy().tolist()
        for tensors in ([fp32(1)], [fp32(1), fp32(7, name="BIAS")])
    ]
    await instance.stop()
    assert (without, with_it) == ([6], [8])


@pytest.mark.parametrize(("rows", "in_place"), [(2, True), (3, False)])
async def test_outputs_are_written_where_their_reader_maps_them(rows: int, in_place: bool, tmp_path: Path) -> None:
    """A model whose output has another shape than configured runs as if nothing provided memory."""
    config = 'input { name: "IN" data_type: TYPE_FP32 dims: [ -1, 2 ] } '
    config += 'output { name: "OUT" data_type: TYPE_FP32 dims: [ 2, 2 ] }'
    instance = await started(write_identity(tmp_path / "m", FP32, ["n", 2], config=config))
    block = np.zeros(16, np.uint8)
    for turn in range(2):
        asked = request(fp32(*[[turn, row] for row in range(rows)]))
        asked.rooms = {"OUT": lambda size: block if size == len(block) else None}
        (answer,) = await answers(instance, asked)
        assert answer.output("OUT").to_numpy().tolist() == [[turn, row] for row in range(rows)]
        assert np.shares_memory(np.frombuffer(answer.output("OUT").data, np.uint8), block) == in_place
    await instance.stop()
