"""Output of `conch engine plan`: a table, the recommended division, and its lines for `model.json`."""

import json
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from conch.measure.advise.planning.checkpoint import Checkpoint
from conch.measure.advise.planning.gpus import GIB, Gpus
from conch.measure.advise.planning.plan import Plan, Split, Workload

_TABLE_COLUMNS = 160  # if the output is not a terminal
_BILLION = 1e9
_KIB = 1024
# Values of vLLM's argument `quantization`; vLLM detects other quantizations from the checkpoint.
_VLLM_QUANTIZATIONS = ("fp8", "awq", "gptq")


def print_plan(model: Checkpoint, gpus: Gpus, workload: Workload, plan: Plan, quantization: str) -> None:
    """Print the plan as a table with the recommended division."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _TABLE_COLUMNS
    shape = model.shape
    console.print(
        f"{shape.family}: {shape.parameters / _BILLION:.2f} billion parameters, {model.weight_bytes / GIB:.1f} GiB "
        f"({model.source}); KV cache {shape.kv_bytes_per_token(workload.kv_bytes) / _KIB:g} KiB per token",
        soft_wrap=True,
    )
    console.print(
        f"{gpus}, {workload.utilization:.0%} of each for the engine; sequences of {workload.length} tokens",
        soft_wrap=True,
    )
    table = Table(box=SIMPLE_HEAD)
    for title in ("TP", "PP", "GPUs"):
        table.add_column(title, justify="right")
    for title in ("weights\nper GPU", "reserve\nper GPU", "KV cache\nper GPU", "tokens", "sequences"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("")
    for split in plan.splits:
        table.add_row(*_cells(split), style="bold" if split is plan.best else "dim" if split.problem else "")
    console.print(table)
    if plan.best is None:
        console.print(plan.reason, soft_wrap=True)
        return
    console.print(f"Best: TP {plan.best.tensor} × PP {plan.best.pipeline}, {plan.reason}.", soft_wrap=True)
    console.print(f"Resources: {_resources(plan.best, gpus)}.\n", soft_wrap=True)
    for backend, document in _model_json(model, workload, plan.best, quantization).items():
        console.print(f'model.json for backend: "{backend}"', soft_wrap=True)
        console.print(escape(json.dumps(document, indent=2)) + "\n", soft_wrap=True)


def print_json(model: Checkpoint, gpus: Gpus, workload: Workload, plan: Plan, quantization: str) -> None:
    """Print the plan as JSON; sizes are in bytes."""
    best = plan.best
    document: dict[str, Any] = {
        "model": {
            "family": model.shape.family,
            "parameters": model.shape.parameters,
            "weight_bytes": model.weight_bytes,
            "weight_source": model.source,
            "kv_bytes_per_token": model.shape.kv_bytes_per_token(workload.kv_bytes),
        },
        "gpus": {"per_node": gpus.per_node, "nodes": gpus.nodes, "memory_bytes": gpus.memory},
        "max_model_len": workload.length,
        "concurrency": workload.concurrency,
        "splits": [_document(split) for split in plan.splits],
        "best": _document(best) if best else None,
        "reason": plan.reason,
    }
    if best is not None:
        document["resources"] = {"nodes": _nodes(best, gpus), "gpus_per_node": best.gpus // _nodes(best, gpus)}
        document["model_json"] = _model_json(model, workload, best, quantization)
    print(json.dumps(document, indent=2))


def _cells(split: Split) -> list[str]:
    names = [str(split.tensor), str(split.pipeline), str(split.gpus)]
    if not split.weights:
        return [*names, "", "", "", "", "", split.problem]
    sizes = [f"{size / GIB:.1f} GiB" for size in (split.weights, split.reserve, max(split.cache, 0))]
    return [*names, *sizes, f"{split.tokens:,}", str(split.sequences), split.problem]


def _document(split: Split) -> dict[str, Any]:
    return {
        "tensor_parallel_size": split.tensor,
        "pipeline_parallel_size": split.pipeline,
        "gpus": split.gpus,
        "weight_bytes_per_gpu": split.weights,
        "reserve_bytes_per_gpu": split.reserve,
        "kv_cache_bytes_per_gpu": max(split.cache, 0),
        "kv_bytes_per_token_per_gpu": split.kv_per_token,
        "tokens": split.tokens,
        "sequences": split.sequences,
        "fits": not split.problem,
        "problem": split.problem,
    }


def _nodes(split: Split, gpus: Gpus) -> int:
    return -(-split.gpus // gpus.per_node)


def _resources(split: Split, gpus: Gpus) -> str:
    nodes = _nodes(split, gpus)
    each = split.gpus // nodes
    number = f"{each} GPU{'s' if each > 1 else ''} (nvidia.com/gpu: {each})"
    return number if nodes == 1 else f"{nodes} nodes with {number} each"


def _model_json(model: Checkpoint, workload: Workload, best: Split, quantization: str) -> dict[str, dict[str, Any]]:
    parallel = {"tensor_parallel_size": best.tensor, "pipeline_parallel_size": best.pipeline}
    name = str(model.path.resolve())
    vllm: dict[str, Any] = {"model": name, **parallel, "max_model_len": workload.length}
    vllm["gpu_memory_utilization"] = workload.utilization
    cache: dict[str, Any] = {"free_gpu_memory_fraction": workload.utilization}
    if workload.kv_bytes == 1:
        vllm["kv_cache_dtype"] = cache["dtype"] = "fp8"
    if quantization in _VLLM_QUANTIZATIONS:
        vllm["quantization"] = quantization
    return {
        "vllm": vllm,
        "tensorrtllm": {"model": name, **parallel, "max_seq_len": workload.length, "kv_cache_config": cache},
    }
