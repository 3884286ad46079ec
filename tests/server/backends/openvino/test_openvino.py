"""The openvino backend: files, shapes, batches of one size, properties, the model cache, and as an accelerator."""

import logging
import re
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from onnx import TensorProto, helper, numpy_helper

from conch.base.errors import BackendError, ConchError, ConfigError, ModelLoadError
from conch.base.extras import install_command
from conch.domain.tensor import NUMPY_DTYPES, Tensor
from conch.server.backends.base import Instance
from conch.server.backends.openvino import backend as module
from conch.server.backends.openvino.backend import OpenVinoInstance
from tests.server.backends.driving import answers, complete, request, started
from tests.server.backends.onnxruntime.onnx_models import FP32, Dims, write_identity, write_model
from tests.server.backends.onnxruntime.test_datatypes import FIXED

ONNX = 'backend: "openvino" default_model_filename: "model.onnx" '
ACCELERATED = (
    'backend: "onnxruntime" optimization { execution_accelerators { cpu_execution_accelerator { name: "openvino" '
)


def parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }} '


def write_double(directory: Path, dims: Dims, config: str = ONNX) -> Path:
    node = helper.make_node("Add", ["IN", "IN"], ["OUT"])
    return write_model(directory, [node], {"IN": (FP32, dims)}, {"OUT": (FP32, dims)}, config=config)


def write_flat(directory: Path, config: str) -> Path:
    """A model whose batch is fixed to 2 by a reshape in its middle."""
    shape = numpy_helper.from_array(np.array([2, 4], np.int64), "SHAPE")
    node = helper.make_node("Reshape", ["IN", "SHAPE"], ["OUT"])
    kind = {"IN": (FP32, [2, 2, 2])}, {"OUT": (FP32, [2, 4])}
    return write_model(directory, [node], *kind, initializers=[shape], config=config)


def fp32(*rows: object) -> Tensor:
    return Tensor.from_numpy("IN", np.array(rows, np.float32))


async def doubled(instance: Instance, *rows: object) -> list[object]:
    """What each row of a batch of requests becomes."""
    got = await answers(instance, *(request(fp32(row)) for row in rows))
    return [
        answer.outputs[0].to_numpy()[0].tolist() if not isinstance(answer, ConchError) else answer for answer in got
    ]


def compiled(instance: Instance) -> ov.CompiledModel:
    assert isinstance(instance, OpenVinoInstance)
    assert instance.compiled is not None
    return instance.compiled


@pytest.mark.parametrize("datatype", [*FIXED, "BF16"])
async def test_fixed_size_elements_pass_unchanged(tmp_path: Path, datatype: str) -> None:
    write_identity(tmp_path / "m", FIXED.get(datatype, TensorProto.BFLOAT16), ["n", 3], config=ONNX)
    instance = await started(tmp_path / "m")
    assert instance.plan.source.config.inputs[0].datatype == datatype
    array = np.array([[1, 0, 1]]).astype(NUMPY_DTYPES.get(datatype, np.dtype("<u2")))
    (answer,) = await answers(instance, request(Tensor("IN", datatype, (1, 3), array.tobytes())))
    await instance.stop()
    output = answer.outputs[0]
    assert (output.datatype, output.shape, bytes(output.data)) == (datatype, (1, 3), array.tobytes())


async def test_strings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'IN' is of OpenVINO's type 'string', which cannot be sent as a tensor"):
        await complete(write_identity(tmp_path / "m", TensorProto.STRING, ["n", 3], config=ONNX))


async def test_another_file_of_the_folder_is_named(tmp_path: Path) -> None:
    directory = write_double(tmp_path / "m", ["n", 3], 'backend: "openvino"')
    with pytest.raises(
        ModelLoadError, match=r"1/model\.xml' for .*the folder holds: model\.onnx; 'default_model_filename' s"
    ):
        await complete(directory)


async def test_a_file_with_a_fixed_batch_gets_a_free_one_where_batching_is_asked_for(tmp_path: Path) -> None:
    instance = await started(write_double(tmp_path / "m", [1, 2], ONNX + "max_batch_size: 4"))
    assert await doubled(instance, [1, 2], [3, 4]) == [[2, 4], [6, 8]]
    await instance.stop()


async def test_a_file_that_cannot_have_a_free_batch_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model 'm'.*batch"):
        await started(write_flat(tmp_path / "m", ONNX + "max_batch_size: 4"))


async def test_a_batch_of_one_size_is_padded_if_that_is_asked_for(tmp_path: Path) -> None:
    text = ONNX + "max_batch_size: 4 " + parameter("SKIP_OV_DYNAMIC_BATCHSIZE", "YES")
    instance = await started(write_double(tmp_path / "m", ["n", 1], text + parameter("ENABLE_BATCH_PADDING", "yes")))
    assert await doubled(instance, [1], [2], [3]) == [[2], [4], [6]]
    assert compiled(instance).inputs[0].partial_shape.is_static
    await instance.stop()


async def test_a_batch_of_one_size_is_refused_otherwise(tmp_path: Path) -> None:
    text = ONNX + "max_batch_size: 2 " + parameter("SKIP_OV_DYNAMIC_BATCHSIZE", "YES")
    instance = await started(write_double(tmp_path / "m", ["n", 1], text))
    assert await doubled(instance, [1], [2]) == [[2], [4]]
    (alone,) = await doubled(instance, [1])
    await instance.stop()
    assert isinstance(alone, BackendError)
    assert "the batch has 1 items, but with SKIP_OV_DYNAMIC_BATCHSIZE the model takes exactly 2" in alone.message


async def test_inputs_are_given_the_shapes_of_the_configuration(tmp_path: Path) -> None:
    io = (
        'input { name: "IN" data_type: TYPE_FP32 dims: [ 2 ] } output { name: "OUT" data_type: TYPE_FP32 dims: [ 2 ] } '
    )
    text = ONNX + io + "max_batch_size: 4 " + parameter("RESHAPE_IO_LAYERS", "YES")
    instance = await started(write_double(tmp_path / "m", ["n", 7], text))
    assert await doubled(instance, [1, 2]) == [[2, 4]]
    await instance.stop()


@pytest.mark.parametrize(("cores", "siblings", "threads"), [(2, 1, 2), (2, 2, 1), (2, 9, 1)])
async def test_instances_share_the_cores(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    cores: int,
    siblings: int,
    threads: int,
) -> None:
    caplog.set_level(logging.INFO, logger="conch")
    monkeypatch.setattr(module, "usable_cores", lambda: cores)
    instance = await started(write_double(tmp_path / "m", ["n", 1]), siblings=siblings)
    assert compiled(instance).get_property("INFERENCE_NUM_THREADS") == threads
    await instance.stop()
    assert f"on CPU, {threads} threads in 1 streams" in caplog.text


async def test_properties_come_from_the_model_before_the_server(tmp_path: Path) -> None:
    text = ONNX + parameter("NUM_STREAMS", "2") + parameter("INFERENCE_PRECISION_HINT", "f32")
    settings = {"NUM_STREAMS": "1", "INFERENCE_NUM_THREADS": "2"}
    instance = await started(write_double(tmp_path / "m", ["n", 1], text), **settings)
    assert compiled(instance).get_property("NUM_STREAMS") == 2
    assert compiled(instance).get_property("INFERENCE_NUM_THREADS") == 2
    assert compiled(instance).get_property("INFERENCE_PRECISION_HINT") == ov.Type.f32
    # Each stream has a separate request, and a batch may run on both.
    assert isinstance(instance, OpenVinoInstance)
    assert instance.concurrent_runs == 2
    assert await doubled(instance, *([number] for number in range(8))) == [[2 * number] for number in range(8)]
    await instance.stop()


async def test_compiled_models_are_kept_in_the_model_cache(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="conch")
    directory = write_double(tmp_path / "m", ["n", 3])
    for loaded in (False, True):
        caplog.clear()
        instance = await started(directory, CACHE_DIR=str(tmp_path / "cache"))
        await instance.stop()
        assert ("from the model cache" in caplog.text) is loaded


@pytest.mark.parametrize(
    ("key", "value", "kind", "said"),
    [
        (
            "CPU_THREADS_NUM",
            "2",
            ConfigError,
            "'CPU_THREADS_NUM' of the openvino backend was renamed; use 'INFERENCE_NUM_THREAD",
        ),
        (
            "RESHAPE_IO_LAYERS",
            "maybe",
            ConfigError,
            "parameter 'RESHAPE_IO_LAYERS' must be one of yes, no, 1, true, 0, false; got 'maybe'",
        ),
        ("ENABLE_BATCH_PADDING", "YES", ConfigError, "'ENABLE_BATCH_PADDING' needs 'SKIP_OV_DYNAMIC_BATCHSIZE'"),
        ("PERFORMANCE_HINT", "SPEED", ModelLoadError, "SPEED"),
        ("TARGET_DEVICE", "TPU", ModelLoadError, "TPU"),
        (
            "CPU_EXTENSION_PATH",
            "/no/such.so",
            ConfigError,
            "CPU_EXTENSION_PATH '/no/such.so' of model 'm' leads",
        ),
        ("CPU_EXTENSION_PATH", "such.so", ConfigError, "parameter CPU_EXTENSION_PATH 'such.so' of model 'm' is native"),
        ("CACHE_DIR", "/no/such", ConfigError, "parameter CACHE_DIR '/no/such' of model 'm' leads out of"),
        ("NUM_STREAMS", "1000000", ConfigError, "parameter 'NUM_STREAMS' of model 'm' is 1000000; the maximum is 1024"),
    ],
)
async def test_what_is_wrong_is_named(tmp_path: Path, key: str, value: str, kind: type[ConchError], said: str) -> None:
    with pytest.raises(kind) as raised:
        await started(write_double(tmp_path / "m", ["n", 3], ONNX + "max_batch_size: 2 " + parameter(key, value)))
    assert said in raised.value.message


async def test_the_operator_may_name_any_extension(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError) as raised:
        await started(write_double(tmp_path / "m", ["n", 3], ONNX), CPU_EXTENSION_PATH="/no/such.so")
    assert "CPU_EXTENSION_PATH: '/no/such.so' cannot be loaded: " in raised.value.message


async def test_onnxruntime_hands_its_model_to_openvino_as_an_accelerator(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="conch")
    text = ACCELERATED + 'parameters { key: "num_streams" value: "2" } } } }'
    instance = await started(write_double(tmp_path / "m", ["n", 2], text))
    assert await doubled(instance, [1, 2], [3, 4]) == [[2, 4], [6, 8]]
    await instance.stop()
    assert "instance 'm_0': this onnxruntime has no OpenVINO; the openvino package runs the model" in caplog.text
    # In the precision of the model, as onnxruntime would.
    assert "in 2 streams, f32 precision" in caplog.text


async def test_an_accelerator_without_the_package_is_refused_with_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "conch.server.backends.openvino.backend", None)
    command = re.escape(install_command("openvino"))
    with pytest.raises(ModelLoadError, match=rf"'openvino' is not installed: {command}"):
        await started(write_double(tmp_path / "m", ["n", 2], ACCELERATED + "} } }"))


async def test_a_parameter_that_the_accelerator_does_not_have_is_named(tmp_path: Path) -> None:
    text = ACCELERATED + 'parameters { key: "speed" value: "2" } } } }'
    with pytest.raises(
        ConfigError, match="execution accelerator 'openvino' has no parameter 'speed'; it has: precision"
    ):
        await started(write_double(tmp_path / "m", ["n", 2], text))
