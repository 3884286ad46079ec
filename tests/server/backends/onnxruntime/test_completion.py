"""Completing a configuration from the model, and finding where the two contradict each other."""

from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto, helper

from conch.base.errors import ConfigError, ModelLoadError
from conch.domain.model_config import DynamicBatching, TensorSpec
from conch.server.backends.onnxruntime.backend import OnnxRuntimeBackend
from tests.server.backends.driving import complete, plan
from tests.server.backends.onnxruntime.onnx_models import FP32, write_identity, write_model

IO = (
    'input {{ name: "IN" data_type: TYPE_{0} dims: [ {1} ] }} '
    'output {{ name: "OUT" data_type: TYPE_{0} dims: [ {1} ] }}'
)


async def test_a_model_that_can_batch(tmp_path: Path) -> None:
    config = await complete(write_identity(tmp_path / "m", FP32, ["n", 3, "k"]))
    assert config.inputs == (TensorSpec("IN", "FP32", (3, -1)),)
    assert config.outputs == (TensorSpec("OUT", "FP32", (3, -1)),)
    assert config.max_batch_size == 4
    assert config.dynamic_batching == DynamicBatching(preferred_batch_sizes=(4,))
    assert [group.count for group in config.instance_groups] == [2]
    assert config.document["platform"] == "onnxruntime_onnx"


@pytest.mark.parametrize(("setting", "size", "batches"), [("16", 16, True), ("1", 1, False), ("0", 0, False)])
async def test_the_default_batch_size_is_a_setting(tmp_path: Path, setting: str, size: int, batches: bool) -> None:
    config = await complete(write_identity(tmp_path / "m", FP32, ["n", 3]), {"default-max-batch-size": setting})
    assert config.max_batch_size == size
    assert (config.dynamic_batching is not None) is batches
    assert config.inputs[0].dims == ((3,) if size else (-1, 3))


async def test_a_setting_that_is_not_a_number(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'default-max-batch-size' must be a whole number >= 0, got 'many'"):
        await complete(write_identity(tmp_path / "m", FP32, ["n", 3]), {"default-max-batch-size": "many"})


async def test_a_stated_batch_size_and_scheduler_are_kept(tmp_path: Path) -> None:
    text = "max_batch_size: 32 dynamic_batching { max_queue_delay_microseconds: 7 }"
    config = await complete(write_identity(tmp_path / "m", FP32, ["n", 3], config=text))
    assert config.max_batch_size == 32
    assert config.dynamic_batching == DynamicBatching(preferred_batch_sizes=(32,), max_queue_delay_us=7)


@pytest.mark.parametrize("dims", [[1, 3], [], [3]])
async def test_a_model_that_cannot_batch(tmp_path: Path, dims: list[int]) -> None:
    config = await complete(write_identity(tmp_path / "m", FP32, dims))
    assert (config.max_batch_size, config.dynamic_batching) == (0, None)
    assert config.inputs[0].dims == tuple(dims or [1])


async def test_batching_that_the_model_cannot_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        await complete(write_identity(tmp_path / "m", FP32, [1, 3], config="max_batch_size: 8"))
    assert raised.value.message == (
        "autofill failed for model 'm': model does not support batching while non-zero max_batch_size is specified "
        "(8); "
        "the first dimension of 'IN' [1, 3] is not variable"
    )


async def test_one_dimension_that_is_the_batch(tmp_path: Path) -> None:
    config = await complete(write_identity(tmp_path / "m", FP32, ["n"]))
    assert config.inputs == (TensorSpec("IN", "FP32", (1,), reshape=()),)


async def test_only_what_is_missing_is_added(tmp_path: Path) -> None:
    text = 'max_batch_size: 2 output { name: "OUT" data_type: TYPE_FP32 dims: [ 3 ] label_filename: "l" }'
    config = await complete(write_identity(tmp_path / "m", FP32, ["n", "k"], config=text))
    assert config.inputs == (TensorSpec("IN", "FP32", (-1,)),)
    assert config.outputs == (TensorSpec("OUT", "FP32", (3,), label_filename="l"),)


async def test_a_stated_shape_with_the_first_dimension_means_no_batching(tmp_path: Path) -> None:
    text = 'input { name: "IN" data_type: TYPE_FP32 dims: [ -1, 3 ] }'
    config = await complete(write_identity(tmp_path / "m", FP32, ["n", 3], config=text))
    assert config.max_batch_size == 0
    assert config.outputs == (TensorSpec("OUT", "FP32", (-1, 3)),)


async def test_a_complete_configuration_is_not_looked_into(tmp_path: Path) -> None:
    directory = write_identity(tmp_path / "m", FP32, ["n", 3], config=IO.format("FP32", "-1, 3"))
    (directory / "1" / "model.onnx").write_bytes(b"not a model")
    config = await complete(directory)
    assert (config.max_batch_size, config.dynamic_batching) == (0, None)


async def test_an_output_that_is_not_a_tensor(tmp_path: Path) -> None:
    node = helper.make_node("SequenceConstruct", ["IN"], ["OUT"])
    graph = helper.make_graph(
        [node],
        "graph",
        [helper.make_tensor_value_info("IN", FP32, ["n", 1])],
        [helper.make_tensor_sequence_value_info("OUT", FP32, ["n", 1])],
    )
    (tmp_path / "m" / "1").mkdir(parents=True)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (tmp_path / "m" / "1" / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ConfigError, match=r"output 'OUT' is seq\(tensor\(float\)\), which cannot be sent as a tensor"):
        await complete(tmp_path / "m")


async def test_a_broken_file_is_named(tmp_path: Path) -> None:
    directory = write_identity(tmp_path / "m", FP32, [1])
    (directory / "1" / "model.onnx").write_bytes(b"not a model")
    with pytest.raises(ModelLoadError, match=r"^onnx runtime error 7: .*m/1/model\.onnx' for model instance 'm'"):
        await complete(directory)


# At load, with a configuration that is complete


async def load(directory: Path) -> None:
    instance = OnnxRuntimeBackend().instance(plan(directory, await complete(directory)))
    try:
        await instance.start()
    finally:
        await instance.stop()


@pytest.mark.parametrize(
    ("dims", "text"),
    [
        (["n", 3], "max_batch_size: 8 " + IO.format("FP32", 3)),
        (["n", 3], IO.format("FP32", "-1, 3")),
        (["n", 3], IO.format("FP32", "2, 3")),
        ([2, 3], IO.format("FP32", "-1, -1")),
        ([1, 3], "max_batch_size: 1 " + IO.format("FP32", 3)),
        ([], IO.format("FP32", 1)),
        ([], IO.format("FP32", "1, 1")),
    ],
)
async def test_configurations_that_fit(tmp_path: Path, dims: list[Any], text: str) -> None:
    await load(write_identity(tmp_path / "m", FP32, dims, config=text))


@pytest.mark.parametrize(
    ("dims", "text", "said"),
    [
        (
            ["n", 3],
            IO.format("INT32", "-1, 3"),
            (
                "unable to load model 'm', configuration expects datatype TYPE_INT32 for input 'IN', "
                "model provides TYPE_FP32"
            ),
        ),
        (
            ["n", 3],
            IO.format("FP32", "-1, 3").replace("IN", "X"),
            "model 'm': unexpected inference input 'X', allowed inputs are: IN",
        ),
        (
            ["n", 3],
            IO.format("FP32", "-1, 3").replace("OUT", "X"),
            "model 'm': unexpected inference output 'X', allowed outputs are: OUT",
        ),
        (
            ["n", 3],
            IO.format("FP32", "3"),
            (
                "model 'm', tensor 'IN': the model expects 2 dimensions (shape [-1, 3]) but the model configuration "
                "specifies 1 dimensions (shape [3])"
            ),
        ),
        (
            ["n", 3],
            "max_batch_size: 4 " + IO.format("FP32", "-1, 3"),
            (
                "model 'm', tensor 'IN': the model expects 2 dimensions (shape [-1, 3]) but the model configuration "
                "specifies 3 dimensions (an initial batch dimension because max_batch_size > 0 followed by [-1, 3], "
                "making complete shape [-1, -1, 3])"
            ),
        ),
        (
            [2, 3],
            IO.format("FP32", "2, 4"),
            "model 'm', tensor 'IN': the model expects shape [2, 3] but the model configuration specifies shape [2, 4]",
        ),
        (
            [1, 3],
            "max_batch_size: 4 " + IO.format("FP32", "3"),
            (
                "model 'm', tensor 'IN': for the model to support batching the shape should have at least 1 dimension "
                "and the first dimension must be -1; but shape expected by the model is [1, 3]; max_batch_size is 4, "
                "0 would serve this shape"
            ),
        ),
        (
            [],
            IO.format("FP32", "3"),
            "model 'm', tensor 'IN': the model expects a scalar but the model configuration specifies [3]",
        ),
    ],
)
async def test_contradictions_name_both_sides(tmp_path: Path, dims: list[Any], text: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        await load(write_identity(tmp_path / "m", FP32, dims, config=text))
    assert raised.value.message == said


async def test_an_input_that_the_configuration_lacks(tmp_path: Path) -> None:
    kind = (TensorProto.INT8, [2])
    node = helper.make_node("Concat", ["A", "B"], ["OUT"], axis=0)
    text = 'input { name: "A" data_type: TYPE_INT8 dims: 2 } output { name: "OUT" data_type: TYPE_INT8 dims: 4 }'
    write_model(tmp_path / "m", [node], {"A": kind, "B": kind}, {"OUT": (TensorProto.INT8, [4])}, config=text)
    with pytest.raises(ConfigError) as raised:
        await load(tmp_path / "m")
    assert raised.value.message == (
        "unable to load model 'm', configuration expects 1 inputs, model provides 2: the configuration lacks 'B'"
    )
