"""Parameters of the pytorch backend in a configuration, which have Triton's names."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from conch.base.errors import ConfigError
from conch.server.backends.base import ModelSource
from conch.server.backends.native_options import MAX_THREADS
from conch.server.backends.parameters import BOOLEANS, chosen

_COMPILE = "TORCH_COMPILE_OPTIONAL_PARAMETERS"
_REMOVED = {"ENABLE_NVFUSER": "PyTorch has no NvFuser any more"}


@dataclass(frozen=True, slots=True)
class TorchSettings:
    """Settings of one model. None and 0 mean that the configuration does not set them."""

    inference_mode: bool = True
    optimized_execution: bool = True
    weight_sharing: bool = False
    cache_cleaning: bool = False
    cudnn: bool | None = None
    jit_executor: bool | None = None
    jit_profiling: bool | None = None
    tensor_fuser: bool | None = None
    intra_op_threads: int = 0
    inter_op_threads: int = 0
    compile_options: Mapping[str, Any] | None = None  # of torch.compile; None: the model is not compiled


def parse_settings(source: ModelSource) -> TorchSettings:
    """Read the parameters. Raises ConfigError for an invalid value."""
    parameters = source.config.parameters
    for name, reason in _REMOVED.items():
        if _boolean(parameters, name):
            raise ConfigError(f"parameter '{name}' of model '{source.config.name}': {reason}; remove it")
    disable_cudnn = _boolean(parameters, "DISABLE_CUDNN")
    return TorchSettings(
        inference_mode=_boolean(parameters, "INFERENCE_MODE") is not False,
        optimized_execution=not _boolean(parameters, "DISABLE_OPTIMIZED_EXECUTION"),
        weight_sharing=bool(_boolean(parameters, "ENABLE_WEIGHT_SHARING")),
        cache_cleaning=bool(_boolean(parameters, "ENABLE_CACHE_CLEANING")),
        cudnn=None if disable_cudnn is None else not disable_cudnn,
        jit_executor=_boolean(parameters, "ENABLE_JIT_EXECUTOR"),
        jit_profiling=_boolean(parameters, "ENABLE_JIT_PROFILING"),
        tensor_fuser=_boolean(parameters, "ENABLE_TENSOR_FUSER"),
        # The names of the parameters for TorchScript, and for models of Triton's Python runtime.
        intra_op_threads=_count(parameters, "INTRA_OP_THREAD_COUNT") or _count(parameters, "NUM_THREADS"),
        inter_op_threads=_count(parameters, "INTER_OP_THREAD_COUNT") or _count(parameters, "NUM_INTEROP_THREADS"),
        compile_options=_compile_options(parameters),
    )


def _boolean(parameters: Mapping[str, str], key: str) -> bool | None:
    return chosen(parameters, key, BOOLEANS, None)


def _count(parameters: Mapping[str, str], key: str) -> int:
    """Return a number of threads, 0 for a negative one, as in Triton."""
    text = parameters.get(key, "0").strip()
    try:
        count = max(int(text), 0)
    except ValueError:
        raise ConfigError(f"parameter '{key}' must be a whole number, got '{text[:100]}'") from None
    if count > MAX_THREADS:
        raise ConfigError(f"parameter '{key}' is {text[:40]}; the maximum is {MAX_THREADS}")
    return count


def _compile_options(parameters: Mapping[str, str]) -> Mapping[str, Any] | None:
    text = parameters.get(_COMPILE)
    if text is None:
        return None
    try:
        options = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"parameter '{_COMPILE}' is not JSON: {error}") from error
    if not isinstance(options, dict) or "model" in options:
        raise ConfigError(f"parameter '{_COMPILE}' must be a JSON object of arguments of torch.compile but 'model'")
    return options
