"""Plan the tensor and pipeline parallelism of a model on some GPUs.

Tensor parallelism (TP) divides every matrix among GPUs, pipeline parallelism (PP) the layers. The memory of a GPU holds
its part of the weights, a reserve for activations, and the KV cache, which bounds the number of concurrent sequences.
Sliding windows of attention count as whole contexts, so that the numbers for models with them are too low.
"""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conch.base.errors import InvalidRequest
from conch.machine.accelerators.gpus import visible_gpus
from conch.machine.accelerators.vendors.nvml import NvmlFault, installed_gpus
from conch.measure.advise.checkpoint import Checkpoint
from conch.measure.advise.config_json import ParameterCount

GIB = 1 << 30
_UNITS = {"gib": GIB, "gb": 10**9, "mib": 1 << 20, "mb": 10**6}
_NOTATION = re.compile(r"(?:(\d+)\s*x\s*)?(\d+(?:\.\d+)?)\s*(gib|gb|mib|mb)", re.IGNORECASE)
_MAX_GPUS = 1024
# Memory of CUDA, its libraries and graphs on a GPU, and of the communication between GPUs.
_LIBRARY_BYTES = GIB
_COMMUNICATION_BYTES = GIB // 2
# Tokens and sampled sequences per step, the defaults of vLLM and TensorRT-LLM.
_STEP_TOKENS = 8192
_SAMPLED = 256
# Numbers of GPUs to suggest if the given ones are too few.
_SUGGESTIONS = (2, 4, 8, 16, 32, 64)
_DEFAULT_NODE_GPUS = 8


@dataclass(frozen=True, slots=True)
class Gpus:
    """`per_node` GPUs in each of `nodes` machines, all with the same memory."""

    per_node: int
    memory: int  # bytes of one
    nodes: int = 1

    @property
    def count(self) -> int:
        """Number of all GPUs."""
        return self.per_node * self.nodes

    def __str__(self) -> str:
        where = f" in each of {self.nodes} nodes" if self.nodes > 1 else ""
        return f"{self.per_node} GPU{'s' if self.per_node > 1 else ''} of {self.memory / GIB:.1f} GiB{where}"


def parse_gpus(text: str, nodes: int = 1) -> Gpus:
    """Parse `8x80GiB`, or `80GiB` for one. Raises InvalidRequest."""
    match = _NOTATION.fullmatch(text.strip())
    count = int(match[1] or 1) if match else 0
    if match is None or not 0 < count <= _MAX_GPUS or float(match[2]) <= 0:
        raise InvalidRequest(
            f"'{text}' is not valid for GPUs: expected their number and the memory of one, such as 8x80GiB"
        )
    return Gpus(count, int(float(match[2]) * _UNITS[match[3].lower()]), nodes)


def detect_gpus(nodes: int = 1) -> Gpus:
    """Return this machine's GPUs with the memory of the smallest. Raises InvalidRequest if NVML finds none."""
    remedy = "describe the GPUs, such as --gpus 8x80GiB"
    try:
        sizes = [gpu.memory_bytes for gpu in visible_gpus(installed_gpus(), os.environ)]
    except NvmlFault as error:
        raise InvalidRequest(f"NVML finds no NVIDIA GPU in this machine ({error}); {remedy}") from None
    if not sizes:
        raise InvalidRequest(f"this machine has no NVIDIA GPU; {remedy}")
    return Gpus(len(sizes), min(sizes), nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The required sequences, and the memory for them."""

    length: int  # tokens of a sequence, prompt and completion together
    concurrency: int = 1  # sequences of that length
    utilization: float = 0.9  # share of a GPU's memory for the engine
    kv_bytes: float = 2  # of one number in the KV cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """One combination of TP and PP, with bytes of the GPU that needs most. `problem` is "" if it fits."""

    tensor: int
    pipeline: int
    weights: int = 0
    reserve: int = 0
    cache: int = 0  # memory for the KV cache; negative if weights and reserve do not fit
    kv_per_token: float = 0
    tokens: int = 0  # that fit into the cache, on all GPUs together
    sequences: int = 0  # of the required length
    problem: str = ""

    @property
    def gpus(self) -> int:
        """Number of GPUs."""
        return self.tensor * self.pipeline


@dataclass(frozen=True, slots=True)
class Plan:
    """All splits and the best one. If none fits, `best` is None and `reason` has what would be needed."""

    splits: tuple[Split, ...]
    best: Split | None
    reason: str


def plan(model: Checkpoint, gpus: Gpus, workload: Workload) -> Plan:
    """Compare all TP × PP that divide the GPUs evenly."""
    splits = _splits(model, gpus, workload)
    best = _best(splits)
    reason = _why_best(best, gpus, workload) if best else _why_none(model, gpus, workload, splits)
    return Plan(splits, best, reason)


def _splits(model: Checkpoint, gpus: Gpus, workload: Workload) -> tuple[Split, ...]:
    return tuple(
        _split(model, gpus, workload, tensor, pipeline)
        for tensor in _divisors(gpus.per_node)
        for pipeline in _divisors(gpus.count // tensor)
    )


def _best(splits: Sequence[Split]) -> Split | None:
    # Fewest GPUs; then tensor parallelism, whose GPUs all work on every token at the same time.
    fitting = [split for split in splits if not split.problem]
    return min(fitting, key=lambda split: (split.gpus, split.pipeline), default=None)


def _divisors(number: int) -> Iterator[int]:
    return (divisor for divisor in range(1, number + 1) if number % divisor == 0)


def _split(model: Checkpoint, gpus: Gpus, workload: Workload, tensor: int, pipeline: int) -> Split:
    problem = _indivisible(model, tensor, pipeline)
    if problem:
        return Split(tensor=tensor, pipeline=pipeline, problem=problem)
    shape = model.shape
    stages = _stages(model, tensor, pipeline)
    weights = max(size for size, _ in stages)
    reserve = _reserve(model, tensor, pipeline)
    budget = int(gpus.memory * workload.utilization)
    width = shape.kv_width_per_gpu(tensor) * workload.kv_bytes
    per_token = max(layers for _, layers in stages) * width
    # The stage with the smallest cache is the limit.
    cache, tokens = min(
        ((budget - reserve - size, int(max(budget - reserve - size, 0) / (layers * width))) for size, layers in stages),
        key=lambda stage: stage[1],
    )
    sequences = tokens // workload.length
    return Split(
        tensor=tensor,
        pipeline=pipeline,
        weights=weights,
        reserve=reserve,
        cache=cache,
        kv_per_token=per_token,
        tokens=tokens,
        sequences=sequences,
        problem=_shortage(weights, reserve, budget, tokens, sequences, workload),
    )


def _indivisible(model: Checkpoint, tensor: int, pipeline: int) -> str:
    shape = model.shape
    if shape.heads % tensor:
        return f"{shape.heads} attention heads are not divisible by TP {tensor}"
    if not shape.kv_shared and shape.kv_heads % tensor and tensor % shape.kv_heads:
        return f"{shape.kv_heads} key-value heads and TP {tensor}: neither is a multiple of the other"
    for width in shape.widths:
        if width % tensor:
            return f"the feed-forward width {width} is not divisible by TP {tensor}"
    if pipeline > len(shape.layers):
        return f"{len(shape.layers)} layers are fewer than PP {pipeline}"
    return ""


def _stages(model: Checkpoint, tensor: int, pipeline: int) -> list[tuple[int, int]]:
    """Return for each stage of the pipeline the bytes of weights on one of its GPUs, and its number of layers."""
    shape = model.shape
    quotient, remainder = divmod(len(shape.layers), pipeline)
    stages, begin = [], 0
    for stage in range(pipeline):
        end = begin + quotient + (stage < remainder)
        size = sum(_part_bytes(model, layer, tensor) for layer in shape.layers[begin:end])
        # A tied embedding is at both ends of the pipeline.
        if stage == 0 or (stage == pipeline - 1 and not shape.output):
            size += shape.embedding * model.other_bytes / tensor
        if stage == pipeline - 1:
            size += shape.output * model.other_bytes / tensor + shape.last * model.other_bytes
        stages.append((round(size), end - begin))
        begin = end
    return stages


def _part_bytes(model: Checkpoint, part: ParameterCount, tensor: int) -> float:
    return part.split * model.matrix_bytes / tensor + part.whole * model.other_bytes


def _reserve(model: Checkpoint, tensor: int, pipeline: int) -> int:
    """Return the memory for libraries, activations of a step's tokens, and logits."""
    shape = model.shape
    # Residual stream in and out, queries and outputs of attention, and two widths of a gated layer.
    numbers = 4 * shape.hidden + 2 * shape.widest // tensor
    logits = _SAMPLED * shape.vocabulary * 4
    step = _STEP_TOKENS * numbers * model.other_bytes
    return round(_LIBRARY_BYTES + (_COMMUNICATION_BYTES if tensor * pipeline > 1 else 0) + step + logits)


def _shortage(weights: int, reserve: int, budget: int, tokens: int, sequences: int, workload: Workload) -> str:
    if weights + reserve > budget:
        return f"weights {_gib(weights)} and reserve {_gib(reserve)} exceed the {_gib(budget)} for the engine"
    if not sequences:
        return f"the KV cache holds {tokens} tokens, less than a sequence of {workload.length}"
    if sequences < workload.concurrency:
        return f"{sequences} sequences of {workload.length} tokens fit, not {workload.concurrency}"
    return ""


def _why_best(best: Split, gpus: Gpus, workload: Workload) -> str:
    plural = "s" if workload.concurrency > 1 else ""
    text = f"the fewest GPUs that hold {workload.concurrency} sequence{plural} of {workload.length} tokens"
    if best.tensor > 1 and best.pipeline == 1:
        text += "; with TP all of them work on every token, with PP one after the other"
    if gpus.count >= 2 * best.gpus:
        text += f"; the GPUs hold {gpus.count // best.gpus} such models"
    return text


def _why_none(model: Checkpoint, gpus: Gpus, workload: Workload, splits: tuple[Split, ...]) -> str:
    """Return the problem of the split that nearly fits, and a number of GPUs that suffice."""
    divisible = [split for split in splits if split.weights]
    nearest = max(divisible or splits, key=lambda split: (split.sequences, split.tokens, split.cache))
    text = f"nothing fits on {gpus}; nearest is TP {nearest.tensor} × PP {nearest.pipeline}: {nearest.problem}"
    for count in _SUGGESTIONS:
        if divisible and count > gpus.count:
            nodes = -(-count // _DEFAULT_NODE_GPUS)
            enough = _best(_splits(model, Gpus(min(count, _DEFAULT_NODE_GPUS), gpus.memory, nodes), workload))
            if enough:
                return f"{text}; {enough.gpus} such GPUs suffice, with TP {enough.tensor} × PP {enough.pipeline}"
    return text


def _gib(size: float) -> str:
    return f"{size / GIB:.1f} GiB"


def model_json(checkpoint: Path, split: Split, length: int, utilization: float) -> dict[str, dict[str, Any]]:
    """Return the model.json of a division, by backend. `utilization` is the share of a GPU's memory."""
    common = {
        "model": str(checkpoint.resolve()),
        "tensor_parallel_size": split.tensor,
        "pipeline_parallel_size": split.pipeline,
    }
    cache = {"free_gpu_memory_fraction": utilization}
    return {
        "vllm": {**common, "max_model_len": length, "gpu_memory_utilization": utilization},
        "tensorrtllm": {**common, "max_seq_len": length, "kv_cache_config": cache},
    }
