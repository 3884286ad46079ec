"""What configurations may make frameworks in the server's process read, write and load."""

from pathlib import Path
from typing import Any

import pytest

from conch.base.errors import ConfigError
from conch.domain.model_config import ModelConfig
from conch.server.backends.base import ModelSource
from conch.server.backends.native_options import checked_accelerator, checked_session_entry, library_path, thread_count
from conch.server.backends.openvino.options import checked_parameters


def source(directory: Path, *, allowed: bool = False, **parameters: str) -> ModelSource:
    config = ModelConfig("m", "onnxruntime", "", 0, (), (), parameters=parameters)
    return ModelSource(config, 1, directory, {}, allow_native_extensions=allowed)


def test_a_library_needs_the_flag(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"op_library 'ops.so' of model 'm' is native .* --allow-native-extens"):
        library_path(source(tmp_path), "ops.so", "op_library")
    assert library_path(source(tmp_path, allowed=True), "1/ops.so", "op_library") == tmp_path.resolve() / "1/ops.so"


@pytest.mark.parametrize("name", ["/usr/lib/libc.so.6", "../other/ops.so", "link.so", "a\0b"])
def test_a_library_outside_of_the_folder_is_refused_with_the_flag_too(tmp_path: Path, name: str) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "link.so").symlink_to("/usr/lib/libc.so.6")
    with pytest.raises(ConfigError, match="leads out of the model's folder"):
        library_path(source(tmp_path / "m", allowed=True), name, "op_library")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("session.model_external_initializers_file_folder_path", "/etc"),
        ("session.collect_node_memory_stats_to_file", "/tmp/x"),
        ("session.optimized_model_filepath", "x"),
        ("session.moe_expert_counter_state_file", "x"),
        ("session.enable_profiling", "prefix"),
        ("session.intra_op_num_threads", "100000"),
    ],
)
def test_session_entries_do_not_name_files_or_any_number_of_threads(tmp_path: Path, key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=key):
        checked_session_entry(source(tmp_path), key, value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("session.disable_prepacking", "1"),
        ("session.intra_op.spin_duration_us", "100"),
        ("session.use_external_initializer_file_buffers_directly", "1"),
        ("session.intra_op_thread_affinities", "1;2"),
    ],
)
def test_other_session_entries_are_handed_on(tmp_path: Path, key: str, value: str) -> None:
    assert checked_session_entry(source(tmp_path), key, value) == value


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("trt_extra_plugin_lib_paths", "a.so;b.so", "native code"),
        ("trt_engine_decryption_lib_path", "a.so", "native code"),
        ("trt_engine_cache_path", "/var/cache", "leads out"),
        ("trt_timing_cache_path", "../x", "leads out"),
        ("trt_engine_cache_prefix", "../x", "without a folder"),
        ("trt_int8_calibration_table_name", "/x", "without a folder"),
        ("gpu_external_alloc", "140737488355328", "is an address"),
        ("user_compute_stream", "140737488355328", "is an address"),
        ("cache_dir", "/tmp/x", "leads out"),
        ("load_config", "/etc/passwd", "leads out"),
        ("context", "0x1234", "is an address"),
        ("num_of_threads", "1000000000000", "the maximum is 1024"),
    ],
)
def test_accelerators_keep_to_the_folder(tmp_path: Path, key: str, value: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        checked_accelerator(source(tmp_path), {key: value})


def test_paths_of_accelerators_are_of_the_models_folder(tmp_path: Path) -> None:
    said: dict[str, Any] = {"cache_dir": "cache", "precision": "FP16", "trt_ep_context_embed_mode": "1"}
    said["trt_engine_cache_prefix"] = "m"
    assert checked_accelerator(source(tmp_path), said) == {**said, "cache_dir": str(tmp_path.resolve() / "cache")}
    said = {"trt_extra_plugin_lib_paths": "a.so;b.so"}
    folder = tmp_path.resolve()
    assert checked_accelerator(source(tmp_path, allowed=True), said) == {
        "trt_extra_plugin_lib_paths": f"{folder}/a.so;{folder}/b.so"
    }


def test_openvino_keeps_to_the_folder_but_for_the_operator(tmp_path: Path) -> None:
    cure = r"the operator may allow any path by --backend-config=openvino,{}=<path>"
    with pytest.raises(ConfigError, match="CACHE_DIR '/tmp' of model 'm' leads out .* " + cure.format("CACHE_DIR")):
        checked_parameters(source(tmp_path, CACHE_DIR="/tmp"))
    with pytest.raises(ConfigError, match="is native code.* " + cure.format("CPU_EXTENSION_PATH")):
        checked_parameters(source(tmp_path, CPU_EXTENSION_PATH="ops.so"))
    with pytest.raises(ConfigError, match="parameter 'NUM_STREAMS' of model 'm' is 99999; the maximum is 1024"):
        checked_parameters(source(tmp_path, NUM_STREAMS="99999"))
    assert checked_parameters(source(tmp_path, CACHE_DIR="c"))["CACHE_DIR"] == str(tmp_path.resolve() / "c")


def test_numbers_of_threads_are_bounded() -> None:
    assert thread_count(" 8 ", "threads", "m") == " 8 "
    assert thread_count("AUTO", "threads", "m") == "AUTO"
    with pytest.raises(ConfigError, match="the maximum is 1024"):
        thread_count("9" * 100_000, "threads", "m")
