"""Choice of an instance's execution providers, from `optimization.execution_accelerators`.

Names and parameters are those of Triton's onnxruntime backend. Does not import onnxruntime.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conch.base.errors import Code, ConfigError, ModelLoadError
from conch.domain.model_config import InstanceKind
from conch.server.backends.base import InstancePlan
from conch.server.backends.native_options import checked_accelerator

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
_TENSORRT = "TensorrtExecutionProvider"
_OPENVINO = "OpenVINOExecutionProvider"
_PROVIDERS = {"cuda": CUDA, "tensorrt": _TENSORRT, "openvino": _OPENVINO}
_REMEDIES = {
    CUDA: "onnxruntime-gpu has CUDA and TensorRT",
    _TENSORRT: "onnxruntime-gpu has CUDA and TensorRT",
}

# Triton's names of TensorRT's options → those of the provider, where they differ.
_TENSORRT_OPTIONS = {
    "max_workspace_size_bytes": "trt_max_workspace_size",
    "minimum_segment_size": "trt_min_subgraph_size",
    "max_partition_iterations": "trt_max_partition_iterations",
    "int8_calibration_table_name": "trt_int8_calibration_table_name",
    "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
}
_TENSORRT_PRECISIONS = {"FP32": (), "FP16": ("trt_fp16_enable",), "INT8": ("trt_int8_enable",)}
# CUDA's options that Triton takes from the model's parameters, and its numbers for named values.
_CUDA_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "cudnn_conv_algo_search": {"0": "EXHAUSTIVE", "1": "HEURISTIC", "2": "DEFAULT"},
    "arena_extend_strategy": {"0": "kNextPowerOfTwo", "1": "kSameAsRequested"},
    "gpu_mem_limit": {},
}


@dataclass(frozen=True, slots=True)
class Accelerators:
    """`providers` with their options in order of preference, the CPU last.

    `openvino` is set if the model requires OpenVINO and this onnxruntime does not have it: the parameters with which
    the openvino backend runs the model instead.
    """

    providers: Sequence[tuple[str, dict[str, str]]] = ()
    openvino: Mapping[str, str] | None = None


def choose(plan: InstancePlan, available: Sequence[str]) -> Accelerators:
    """Return the accelerators of an instance, from the providers that this onnxruntime has.

    Raises ModelLoadError for an accelerator that is unknown or not available, ConfigError for an invalid parameter.
    """
    configured, on_gpu = _configured(plan, available)
    if not on_gpu and _OPENVINO not in available:
        for accelerator in configured:
            if accelerator["name"] == "openvino":
                return Accelerators(openvino=checked_accelerator(plan.source, accelerator.get("parameters", {})))
    chosen: dict[str, dict[str, str]] = {}
    for accelerator in configured:
        provider = _provider(accelerator["name"], plan, available)
        chosen[provider] = _options(provider, checked_accelerator(plan.source, accelerator.get("parameters", {})))
    if on_gpu:
        chosen[CUDA] = _cuda_parameters(plan.source.config.parameters) | chosen.get(CUDA, {})
        for options in chosen.values():
            options["device_id"] = str(plan.device_id)
    return Accelerators(providers=[*chosen.items(), (CPU, {})])


def _configured(plan: InstancePlan, available: Sequence[str]) -> tuple[Sequence[Mapping[str, Any]], bool]:
    """Return the accelerators that the configuration names for the instance's device, and whether that is a GPU."""
    on_gpu = plan.kind is InstanceKind.GPU
    if on_gpu and CUDA not in available:
        text = f"instance '{plan.name}' is KIND_GPU, but this onnxruntime has no CUDA: it runs on the CPU"
        plan.source.report("kind_gpu_on_cpu", text)
        on_gpu = False
    accelerators = plan.source.config.document.get("optimization", {}).get("execution_accelerators", {})
    return accelerators.get("gpu_execution_accelerator" if on_gpu else "cpu_execution_accelerator", ()), on_gpu


def _provider(accelerator: str, plan: InstancePlan, available: Sequence[str]) -> str:
    provider = _PROVIDERS.get(accelerator, "")
    if provider not in available:
        remedy = f"; {_REMEDIES[provider]}" if provider in _REMEDIES else ""
        raise ModelLoadError(
            f"unknown Execution Accelerator '{accelerator}' is requested for model instance '{plan.name}'; "
            f"this onnxruntime has: {', '.join(available)}{remedy}",
            Code.INVALID_ARG,
        )
    return provider


def _options(provider: str, parameters: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters of an accelerator under the provider's names."""
    if provider == _TENSORRT:
        return _tensorrt_options(parameters)
    return _named_values(parameters) if provider == CUDA else dict(parameters)


def _tensorrt_options(parameters: Mapping[str, str]) -> dict[str, str]:
    options = {_TENSORRT_OPTIONS.get(name, name): value for name, value in parameters.items()}
    precision = options.pop("precision_mode", "FP32").upper()
    if precision not in _TENSORRT_PRECISIONS:
        raise ConfigError(
            f"precision_mode of the execution accelerator 'tensorrt' must be one of "
            f"{', '.join(_TENSORRT_PRECISIONS)}; got '{precision}'"
        )
    return options | dict.fromkeys(_TENSORRT_PRECISIONS[precision], "1")


def _cuda_parameters(parameters: Mapping[str, str]) -> dict[str, str]:
    return _named_values({name: value for name, value in parameters.items() if name in _CUDA_OPTIONS})


def _named_values(parameters: Mapping[str, str]) -> dict[str, str]:
    return {name: _CUDA_OPTIONS.get(name, {}).get(value, value) for name, value in parameters.items()}
