"""Execution accelerators: which providers are asked for, and with which options."""

from pathlib import Path

import pytest

from conch.base.errors import Code, ConfigError, ModelLoadError
from conch.domain.model_config import InstanceKind, ModelConfig
from conch.server.backends.base import InstancePlan, ModelSource
from conch.server.backends.onnxruntime.accelerators import choose

CPU = ("CPUExecutionProvider", {})
ALL = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]


def plan(gpu: list[object] | None = None, cpu: list[object] | None = None, **parameters: str) -> InstancePlan:
    """An instance on GPU 1 if there are accelerators for one, else on the CPU."""
    accelerators = {"gpu_execution_accelerator": gpu or [], "cpu_execution_accelerator": cpu or []}
    document = {"optimization": {"execution_accelerators": accelerators}}
    config = ModelConfig("m", "onnxruntime", "", 0, (), (), parameters=parameters, document=document)
    kind = InstanceKind.GPU if gpu is not None else InstanceKind.CPU
    return InstancePlan(ModelSource(config, 1, Path(), {}), "m_0", kind, 1, 1)


def test_the_cpu_is_the_last_resort() -> None:
    assert choose(plan(), ALL).providers == [CPU]


def test_a_gpu_means_cuda_with_the_options_of_the_model() -> None:
    providers = choose(plan(gpu=[], cudnn_conv_algo_search="1", gpu_mem_limit="1000", other="x"), ALL).providers
    options = {"cudnn_conv_algo_search": "HEURISTIC", "gpu_mem_limit": "1000", "device_id": "1"}
    assert providers == [("CUDAExecutionProvider", options), CPU]


def test_tensorrt_goes_before_cuda_under_its_own_names() -> None:
    parameters = {"precision_mode": "fp16", "max_workspace_size_bytes": "7", "trt_engine_cache_enable": "1"}
    providers = choose(plan(gpu=[{"name": "tensorrt", "parameters": parameters}]), ALL).providers
    tensorrt = {
        "trt_max_workspace_size": "7",
        "trt_engine_cache_enable": "1",
        "trt_fp16_enable": "1",
        "device_id": "1",
    }
    assert providers == [("TensorrtExecutionProvider", tensorrt), ("CUDAExecutionProvider", {"device_id": "1"}), CPU]


def test_a_precision_that_tensorrt_does_not_have_is_named() -> None:
    asked = [{"name": "tensorrt", "parameters": {"precision_mode": "FP8"}}]
    with pytest.raises(ConfigError, match="'tensorrt' must be one of FP32, FP16, INT8; got 'FP8'"):
        choose(plan(gpu=asked), ALL)


def test_a_gpu_accelerator_that_is_not_there_is_refused_with_the_cure() -> None:
    with pytest.raises(ModelLoadError) as raised:
        choose(plan(gpu=[{"name": "tensorrt"}]), ALL[1:])
    assert raised.value.code is Code.INVALID_ARG
    assert raised.value.message == (
        "unknown Execution Accelerator 'tensorrt' is requested for model instance 'm_0'; this onnxruntime has: "
        "CUDAExecutionProvider, CPUExecutionProvider; onnxruntime-gpu has CUDA and TensorRT"
    )


def test_without_cuda_a_gpu_instance_runs_on_the_cpu(caplog: pytest.LogCaptureFixture) -> None:
    assert choose(plan(gpu=[{"name": "tensorrt"}]), ALL[2:]).providers == [CPU]
    assert "instance 'm_0' is KIND_GPU, but this onnxruntime has no CUDA: it runs on the CPU" in caplog.text


def test_an_onnxruntime_with_openvino_uses_it_itself() -> None:
    asked = [{"name": "openvino", "parameters": {"num_streams": "2"}}]
    choice = choose(plan(cpu=asked), ["OpenVINOExecutionProvider", "CPUExecutionProvider"])
    assert choice.openvino is None
    assert choice.providers == [("OpenVINOExecutionProvider", {"num_streams": "2"}), CPU]


def test_any_other_leaves_it_to_the_openvino_backend() -> None:
    asked = [{"name": "openvino", "parameters": {"num_streams": "2"}}]
    assert choose(plan(cpu=asked), ALL).openvino == {"num_streams": "2"}
