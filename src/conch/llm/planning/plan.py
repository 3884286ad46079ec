"""Which tensor and pipeline parallelism fits a model on some GPUs, how much of it, and which to take.

Tensor parallelism (TP) divides every matrix among GPUs, pipeline parallelism (PP) the layers. What a GPU has is taken
by its part of the weights and by a reserve for what is computed with. The rest is KV cache: it says how many sequences
fit side by side. Windows of attention are counted as whole contexts, so a model that has them fits more than is said.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from conch.llm.planning.checkpoint import Checkpoint
from conch.llm.planning.gpus import GIB, Gpus
from conch.llm.planning.shape import ParameterCount

# What CUDA, its libraries and graphs take of a GPU, and what the exchange between GPUs does.
_LIBRARY_BYTES = GIB
_EXCHANGE_BYTES = GIB // 2
# Tokens that an engine computes in one step, as vLLM and TensorRT-LLM have it by default, and sequences it samples for.
_STEP_TOKENS = 8192
_SAMPLED = 256
# Where these GPUs are too few: what is tried instead, eight to a machine.
_SIZES = (2, 4, 8, 16, 32, 64)
_USUAL_NODE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is to fit."""

    length: int  # tokens of a sequence, prompt and answer together
    concurrency: int = 1  # sequences of that length side by side
    utilization: float = 0.9  # of a GPU's memory that the engine may take
    kv_bytes: float = 2  # of one number in the KV cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """One way to divide the model, per GPU: bytes of the fullest, and what follows. `problem` is "" if it fits."""

    tensor: int
    pipeline: int
    weights: int = 0
    reserve: int = 0
    cache: int = 0  # room for the KV cache; below 0 where there is none
    kv_per_token: float = 0
    tokens: int = 0  # that fit into the cache, on all GPUs together
    sequences: int = 0  # of the wished length
    problem: str = ""

    @property
    def gpus(self) -> int:
        """How many GPUs it takes."""
        return self.tensor * self.pipeline


@dataclass(frozen=True, slots=True)
class Plan:
    """All ways, and the best: None if none fits, and then `reason` says what would be needed."""

    splits: tuple[Split, ...]
    best: Split | None
    reason: str


def plan(model: Checkpoint, gpus: Gpus, wish: Wish) -> Plan:
    """Try every TP × PP that uses GPUs evenly."""
    splits = _splits(model, gpus, wish)
    best = _best(splits)
    return Plan(splits, best, _praise(best, gpus, wish) if best else _reason(model, gpus, wish, splits))


def _splits(model: Checkpoint, gpus: Gpus, wish: Wish) -> tuple[Split, ...]:
    return tuple(
        _split(model, gpus, wish, tensor, pipeline)
        for tensor in _divisors(gpus.per_node)
        for pipeline in _divisors(gpus.count // tensor)
    )


def _best(splits: Sequence[Split]) -> Split | None:
    # Fewest GPUs; of those, tensor parallelism first: all of its GPUs work on every token, a pipeline's one by one.
    fitting = [split for split in splits if not split.problem]
    return min(fitting, key=lambda split: (split.gpus, split.pipeline), default=None)


def _divisors(number: int) -> Iterator[int]:
    return (each for each in range(1, number + 1) if number % each == 0)


def _split(model: Checkpoint, gpus: Gpus, wish: Wish, tensor: int, pipeline: int) -> Split:
    problem = _indivisible(model, tensor, pipeline)
    if problem:
        return Split(tensor=tensor, pipeline=pipeline, problem=problem)
    shape = model.shape
    stages = _stages(model, tensor, pipeline)
    weights = max(size for size, _ in stages)
    reserve = _reserve(model, tensor, pipeline)
    budget = int(gpus.memory * wish.utilization)
    width = shape.kv_width_per_gpu(tensor) * wish.kv_bytes
    per_token = max(layers for _, layers in stages) * width
    # The stage whose cache is full first is the one that counts.
    cache, tokens = min(
        ((budget - reserve - size, int(max(budget - reserve - size, 0) / (layers * width))) for size, layers in stages),
        key=lambda each: each[1],
    )
    sequences = tokens // wish.length
    return Split(
        tensor=tensor,
        pipeline=pipeline,
        weights=weights,
        reserve=reserve,
        cache=cache,
        kv_per_token=per_token,
        tokens=tokens,
        sequences=sequences,
        problem=_shortage(weights, reserve, budget, tokens, sequences, wish),
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
    least, more = divmod(len(shape.layers), pipeline)
    stages, begin = [], 0
    for stage in range(pipeline):
        end = begin + least + (stage < more)
        size = sum(_part_bytes(model, layer, tensor) for layer in shape.layers[begin:end])
        # Tied to the output, the embedding is at both ends of the pipeline.
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
    """Return what is kept free for libraries, for the numbers of a step's tokens, and for the vocabulary's."""
    shape = model.shape
    # The residual stream in and out, queries and what attention gives; a gated layer has two of its width.
    numbers = 4 * shape.hidden + 2 * shape.widest // tensor
    logits = _SAMPLED * shape.vocabulary * 4
    step = _STEP_TOKENS * numbers * model.other_bytes
    return round(_LIBRARY_BYTES + (_EXCHANGE_BYTES if tensor * pipeline > 1 else 0) + step + logits)


def _shortage(weights: int, reserve: int, budget: int, tokens: int, sequences: int, wish: Wish) -> str:
    if weights + reserve > budget:
        return f"weights {_gib(weights)} and reserve {_gib(reserve)} are more than the {_gib(budget)} that may be used"
    if not sequences:
        return f"the KV cache holds {tokens} tokens, no sequence of {wish.length}"
    if sequences < wish.concurrency:
        return f"{sequences} sequences of {wish.length} tokens fit, not {wish.concurrency}"
    return ""


def _praise(best: Split, gpus: Gpus, wish: Wish) -> str:
    words = f"the fewest GPUs that hold {wish.concurrency} sequence{'s' if wish.concurrency > 1 else ''} of "
    words += f"{wish.length} tokens"
    if best.tensor > 1 and best.pipeline == 1:
        words += "; with TP all of them work on every token, with PP one after the other"
    if gpus.count >= 2 * best.gpus:
        words += f"; there is room for {gpus.count // best.gpus} such models side by side"
    return words


def _reason(model: Checkpoint, gpus: Gpus, wish: Wish, splits: tuple[Split, ...]) -> str:
    """Say why nothing fits, by the split that comes nearest, and how many such GPUs would do."""
    divisible = [split for split in splits if split.weights]
    nearest = max(divisible or splits, key=lambda split: (split.sequences, split.tokens, split.cache))
    words = f"nothing fits on {gpus}; nearest is TP {nearest.tensor} × PP {nearest.pipeline}: {nearest.problem}"
    for count in _SIZES:
        if divisible and count > gpus.count:
            enough = _best(_splits(model, Gpus(min(count, _USUAL_NODE), gpus.memory, -(-count // _USUAL_NODE)), wish))
            if enough:
                return f"{words}; {enough.gpus} such GPUs would do, with TP {enough.tensor} × PP {enough.pipeline}"
    return words


def _gib(size: float) -> str:
    return f"{size / GIB:.1f} GiB"
