"""Arguments of a TensorRT-LLM model, and checks of packages and GPUs before it is loaded."""

from __future__ import annotations

import importlib.util
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..driver import Refused
from ..model_json import adapter_paths, read_json


def read_arguments(directory: Path) -> dict[str, Any]:
    """Return the arguments of `LLM` from a version's directory. Raises Refused if they are invalid."""
    path = directory / "model.json"
    arguments = read_json(path)
    if not path.is_file() and (directory / "model.yaml").is_file():
        path = directory / "model.yaml"
        arguments = _read_yaml(path)
        arguments.pop("triton_config", None)  # config.pbtxt has its settings
    if not arguments.get("model"):
        raise Refused(f"{path}: 'model' must name a checkpoint: its folder, or its name on the Hugging Face hub")
    model = directory / str(arguments["model"])
    if model.exists():  # beside model.json, or an absolute path
        arguments["model"] = str(model)
    if isinstance(arguments.get("model"), str) and (model / "rank0.engine").exists():
        raise Refused(
            f"{path}: 'model' names a folder with engines of trtllm-build, which newer releases of TensorRT-LLM no "
            "longer support: name the checkpoint that they were built from"
        )
    arguments.setdefault("guided_decoding_backend", "xgrammar")
    arguments.setdefault("enable_iter_perf_stats", True)
    return arguments


def read_adapters(directory: Path, arguments: dict[str, Any]) -> dict[str, Path]:
    """Return the folders of the LoRA adapters by name. Raises Refused for a missing one."""
    listed = directory / "multi_lora.json"
    if read_json(listed) and not arguments.get("lora_config"):
        raise Refused(
            f"{listed}: TensorRT-LLM needs the size of LoRA adapters: "
            'set "lora_config": {"lora_dir": […], "max_lora_rank": …} in model.json'
        )
    return adapter_paths(directory, lambda folder: "" if folder.is_dir() else "does not exist")


def _read_yaml(path: Path) -> dict[str, Any]:
    import yaml

    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise Refused(f"{path}: {error}") from error
    if not isinstance(document, dict):
        raise Refused(f"{path}: must hold a mapping of argument names to values")
    return document


def gpus_here(arguments: dict[str, Any]) -> int:
    """Return how many GPUs of this machine the arguments take."""
    total: int = arguments.get("tensor_parallel_size", 1) * arguments.get("pipeline_parallel_size", 1)
    here: int = arguments.get("gpus_per_node", total)
    return min(total, here)


def require_gpus(arguments: dict[str, Any], directory: Path) -> None:
    """Raise Refused if this interpreter has no TensorRT-LLM, or this machine has too few GPUs for the arguments."""
    if importlib.util.find_spec("tensorrt_llm") is None:
        raise Refused(f"the environment '{sys.prefix}' has no package 'tensorrt_llm': pip install tensorrt-llm into it")
    tensor = arguments.get("tensor_parallel_size", 1)
    pipeline = arguments.get("pipeline_parallel_size", 1)
    needed = gpus_here(arguments)
    gpus = 0
    with suppress(ImportError):
        import torch

        gpus = torch.cuda.device_count()
    if gpus < needed:
        raise Refused(
            f"{directory}: tensor_parallel_size {tensor} × pipeline_parallel_size {pipeline} need {needed} NVIDIA "
            f"GPU{'s' if needed > 1 else ''}, this machine has {gpus}; `conch engine plan` shows what fits which GPUs"
        )
