"""`conch engine`: plan the GPUs for a language model."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conch.base.command_line.command_parser import CommandParser
from conch.base.command_line.flag_values import one_of, value_kind
from conch.base.command_line.flags import flag_field, settings_of
from conch.base.command_line.option_types import count, fraction
from conch.base.command_line.say import say
from conch.base.errors import ConchError, InvalidRequest
from conch.measure.advise.checkpoint import QUANTIZATIONS, Checkpoint, read_checkpoint
from conch.measure.advise.engine_plan import (
    GIB,
    Gpus,
    Plan,
    Split,
    Workload,
    detect_gpus,
    model_json,
    parse_gpus,
    plan,
)

_TABLE_COLUMNS = 160  # if the output is not a terminal
_BILLION = 1e9
_KIB = 1024
# Values of vLLM's argument `quantization`; vLLM detects other quantizations from the checkpoint.
_VLLM_QUANTIZATIONS = ("fp8", "awq", "gptq")
_FAILURE = 1
_DTYPES = {"float32": 4, "bfloat16": 2, "float16": 2}
_COUNT = value_kind("N", count)


@dataclass(frozen=True, slots=True)
class PlanFlags:
    """The flags of `conch engine plan`."""

    # fmt: off
    gpus: str | None = flag_field(
        None, "", "GPUs of a machine, such as 8x80GiB (default: the GPUs of this machine)", value_kind("NxSIZE"))
    nodes: int = flag_field(1, "", "number of machines with these GPUs", _COUNT)
    max_model_len: int | None = flag_field(None, "", "tokens of a sequence (default: the model's context)", _COUNT)
    concurrency: int = flag_field(1, "", "number of concurrent sequences", _COUNT)
    dtype: str | None = flag_field(None, "", "type of the weights (default: as stored)", one_of(*_DTYPES))
    quantization: str = flag_field("", "", "quantization of the weights when loaded", one_of(*QUANTIZATIONS))
    kv_cache_dtype: str = flag_field("auto", "", "type of the KV cache", one_of("auto", "fp8"))
    gpu_memory_utilization: float = flag_field(
        0.9, "", "share of a GPU's memory for the engine (default: 0.9)", value_kind("X", fraction))
    json: bool = flag_field(False, "", "print JSON", value_kind(""), bare=True)
    # fmt: on


def engine(arguments: Sequence[str]) -> int:
    """Run a sub-command; return the exit status: 0, 1 if nothing fits or after a failure, 2 for invalid arguments."""
    parser = CommandParser("conch engine", description="Plan engines for language models.")
    commands = parser.add_subparsers(title="commands", metavar="command", dest="command", required=True)
    planning = commands.add_parser("plan", help="calculate on how many GPUs a model fits", description=_PLAN)
    planning.add_argument("model", metavar="MODEL", type=Path, help="folder of a checkpoint, or its config.json")
    planning.add_flags(PlanFlags)
    given = parser.parse_args(arguments)
    try:
        return _plan(given.model, settings_of(PlanFlags, given))
    except ConchError as error:
        say(f"conch engine plan: {error}")
    return _FAILURE


def _plan(path: Path, flags: PlanFlags) -> int:
    dtype_bytes = _DTYPES[flags.dtype] if flags.dtype else None
    model = read_checkpoint(path, dtype_bytes=dtype_bytes, quantization=flags.quantization)
    length = flags.max_model_len or model.shape.context
    if not length:
        raise InvalidRequest("the checkpoint does not contain its context length: give --max-model-len")
    if model.shape.context and length > model.shape.context:
        raise InvalidRequest(f"--max-model-len {length} is above the model's context of {model.shape.context} tokens")
    gpus = parse_gpus(flags.gpus, flags.nodes) if flags.gpus else detect_gpus(flags.nodes)
    workload = Workload(
        length=length,
        concurrency=flags.concurrency,
        utilization=flags.gpu_memory_utilization,
        kv_bytes=1 if flags.kv_cache_dtype == "fp8" else max(model.other_bytes, 2),
    )
    engine_plan = plan(model, gpus, workload)
    (print_json if flags.json else print_plan)(model, gpus, workload, engine_plan, flags.quantization)
    return 0 if engine_plan.best else _FAILURE


_PLAN = (
    "For each division of a model among GPUs (tensor parallelism times pipeline parallelism), calculate the weights "
    "and KV cache on each GPU and the number of concurrent sequences, or the reason why it does not fit; and recommend "
    "one. The exit status is 1 if none fits."
)


def print_plan(model: Checkpoint, gpus: Gpus, workload: Workload, plan: Plan, quantization: str) -> None:
    """Print the plan as a table with the recommended division."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

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
    per_node = split.gpus // nodes
    number = f"{per_node} GPU{'s' if per_node > 1 else ''} (nvidia.com/gpu: {per_node})"
    return number if nodes == 1 else f"{nodes} nodes with {number} each"


def _model_json(model: Checkpoint, workload: Workload, best: Split, quantization: str) -> dict[str, dict[str, Any]]:
    documents = model_json(model.path, best, workload.length, workload.utilization)
    if workload.kv_bytes == 1:
        documents["vllm"]["kv_cache_dtype"] = documents["tensorrtllm"]["kv_cache_config"]["dtype"] = "fp8"
    if quantization in _VLLM_QUANTIZATIONS:
        documents["vllm"]["quantization"] = quantization
    return documents
