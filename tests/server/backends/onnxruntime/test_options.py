"""Session options: from parameters, `optimization` and settings."""

import logging
from dataclasses import replace
from pathlib import Path

import onnxruntime as ort
import pytest

from conch.base.errors import ConchError, ConfigError, ModelLoadError
from conch.server.backends.onnxruntime import backend as module
from conch.server.backends.onnxruntime.backend import OnnxRuntimeBackend
from tests.server.backends.driving import complete, plan, started
from tests.server.backends.onnxruntime.onnx_models import FP32, write_identity


def parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'


async def options(directory: Path, text: str = "", *, siblings: int = 1, **settings: str) -> ort.SessionOptions:
    """The options of the session that an instance really has."""
    write_identity(directory / "m", FP32, ["n", 1], config=text)
    instance = await started(directory / "m", siblings=siblings, **settings)
    assert isinstance(instance, module.OnnxRuntimeInstance)
    assert instance.session is not None
    options = instance.session.get_session_options()
    await instance.stop()
    return options


@pytest.mark.parametrize(("cores", "siblings", "threads"), [(8, 1, 8), (8, 2, 4), (8, 3, 2), (2, 2, 1), (2, 9, 1)])
async def test_instances_share_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int, siblings: int, threads: int
) -> None:
    monkeypatch.setattr(module, "usable_cores", lambda: cores)
    session_options = await options(tmp_path, siblings=siblings, measure_threads="false")
    assert session_options.intra_op_num_threads == threads


async def test_the_choice_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="conch")
    await options(tmp_path, parameter("intra_op_thread_count", "3"))
    assert "instance 'm_0': CPUExecutionProvider, 3 intra-op threads" in caplog.text


async def test_thread_counts_of_the_model_go_before_settings(tmp_path: Path) -> None:
    session_options = await options(
        tmp_path, parameter("intra_op_thread_count", "3"), intra_op_thread_count="5", inter_op_thread_count="2"
    )
    assert (session_options.intra_op_num_threads, session_options.inter_op_num_threads) == (3, 2)


async def test_zero_threads_means_unsaid(tmp_path: Path) -> None:
    session_options = await options(tmp_path, parameter("intra_op_thread_count", "0"), intra_op_thread_count="5")
    assert session_options.intra_op_num_threads == 5


@pytest.mark.parametrize(("version", "spinning"), [((1, 25), ("0", "")), ((1, 26), ("1", "100"))])
async def test_threads_spin_for_a_moment_where_that_can_be_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: tuple[int, int], spinning: tuple[str, str]
) -> None:
    monkeypatch.setattr(module, "_VERSION", version)
    assert spinning_of(await options(tmp_path)) == spinning


async def test_parameters_say_whether_and_how_long_threads_spin(tmp_path: Path) -> None:
    never = parameter("session.intra_op.allow_spinning", "0")
    long = parameter("session.intra_op.spin_duration_us", "5000")
    assert spinning_of(await options(tmp_path, never + long)) == ("0", "5000")


def spinning_of(session_options: ort.SessionOptions) -> tuple[str, ...]:
    return tuple(entry(session_options, f"session.intra_op.{key}") for key in ("allow_spinning", "spin_duration_us"))


def entry(session_options: ort.SessionOptions, key: str) -> str:
    try:
        return str(session_options.get_session_config_entry(key))
    except RuntimeError:  # onnxruntime's way to say that it was never set
        return ""


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (-1, ort.GraphOptimizationLevel.ORT_ENABLE_BASIC),
        (0, ort.GraphOptimizationLevel.ORT_ENABLE_ALL),
        (1, ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED),
        (2, ort.GraphOptimizationLevel.ORT_DISABLE_ALL),
    ],
)
async def test_graph_levels_are_tritons(tmp_path: Path, level: int, expected: ort.GraphOptimizationLevel) -> None:
    session_options = await options(tmp_path, f"optimization {{ graph {{ level: {level} }} }}")
    assert session_options.graph_optimization_level == expected


async def test_other_parameters(tmp_path: Path) -> None:
    text = " ".join(
        [
            parameter("execution_mode", "1"),
            parameter("enable_mem_arena", "0"),
            parameter("enable_mem_pattern", "False"),
            parameter("session.use_device_allocator_for_initializers", "1"),
            parameter("memory.enable_memory_arena_shrinkage", "cpu:0"),
            parameter("something_of_the_user's", "x"),
        ]
    )
    session_options = await options(tmp_path, text)
    assert session_options.execution_mode == ort.ExecutionMode.ORT_PARALLEL
    assert not session_options.enable_cpu_mem_arena
    assert not session_options.enable_mem_pattern
    assert session_options.get_session_config_entry("session.use_device_allocator_for_initializers") == "1"


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        (parameter("execution_mode", "2"), ConfigError, "parameter 'execution_mode' must be one of 0, 1; got '2'"),
        (parameter("intra_op_thread_count", "-1"), ConfigError, "'intra_op_thread_count' must be a whole number >= 0"),
        (parameter("enable_mem_arena", "maybe"), ConfigError, "'enable_mem_arena' must be one of 1, true, 0, false"),
        ("optimization { graph { level: 3 } }", ConfigError, "optimization.graph.level is 3; allowed: -1, 0, 1, 2"),
        (
            'optimization { execution_accelerators { cpu_execution_accelerator { name: "warp" } } }',
            ModelLoadError,
            "unknown Execution Accelerator 'warp' is requested for model instance 'm_0'; this onnxruntime has: ",
        ),
        (
            'model_operations { op_library_filename: "ops.so" }',
            ConfigError,
            "model_operations.op_library_filename 'ops.so' of model 'm' is native code",
        ),
        (
            'model_operations { op_library_filename: "/lib/ops.so" }',
            ConfigError,
            "model_operations.op_library_filename '/lib/ops.so' of model 'm' leads out of the model's folder",
        ),
        (parameter("intra_op_thread_count", "100000"), ConfigError, "'intra_op_thread_count' of model 'm' is 100000;"),
        (
            parameter("session.model_external_initializers_file_folder_path", "/etc"),
            ConfigError,
            "names files for onnxruntime to read or write",
        ),
    ],
)
async def test_what_is_wrong_is_named(tmp_path: Path, text: str, kind: type[ConchError], said: str) -> None:
    io = 'input { name: "IN" data_type: TYPE_FP32 dims: 1 } output { name: "OUT" data_type: TYPE_FP32 dims: 1 }'
    directory = write_identity(tmp_path / "m", FP32, ["n", 1], config=f"max_batch_size: 2 {io} {text}")
    instance = OnnxRuntimeBackend().instance(plan(directory, await complete(directory)))
    with pytest.raises(kind) as raised:
        await instance.start()
    await instance.stop()
    assert said in raised.value.message


async def test_accelerators_of_gpus_do_not_bind_the_cpu(tmp_path: Path) -> None:
    text = 'optimization { execution_accelerators { gpu_execution_accelerator { name: "tensorrt" } } }'
    await options(tmp_path, text)


async def test_a_library_that_is_allowed_is_loaded(tmp_path: Path) -> None:
    io = 'input { name: "IN" data_type: TYPE_FP32 dims: 1 } output { name: "OUT" data_type: TYPE_FP32 dims: 1 }'
    text = f'max_batch_size: 2 {io} model_operations {{ op_library_filename: "ops.so" }}'
    directory = write_identity(tmp_path / "m", FP32, ["n", 1], config=text)
    made = plan(directory, await complete(directory))
    made = replace(made, source=replace(made.source, allow_native_extensions=True))
    instance = OnnxRuntimeBackend().instance(made)
    with pytest.raises(ModelLoadError, match=r"model_operations of model 'm': 'ops.so' cannot be loaded: "):
        await instance.start()
    await instance.stop()
