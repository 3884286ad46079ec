"""Divide GPUs among language models: TP × PP, replicas, and the fastest possible tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from conch.base.durations import duration_text
from conch.base.errors import ConchError
from conch.measure.advise.advice_facts import GIB, AdvisedFigure, Demand, Failure, FigureSource, GpuFacts, ModelFacts
from conch.measure.advise.checkpoint import Checkpoint, read_checkpoint
from conch.measure.advise.engine_plan import Gpus, Split, Workload, plan

UTILIZATION = 0.9  # vLLM's default
# Families whose tokens pass only some of the weights, so that the time to read all of them is not a lower bound.
_MIXTURES = ("mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3")
_QUANTIZATIONS = ("fp8", "awq")


@dataclass(frozen=True, slots=True)
class LanguagePlan:
    """The GPUs of one language model. `length` is the tokens of a typical sequence, `limit` of the longest one."""

    split: Split
    replicas: int
    length: int
    limit: int
    utilization: float
    figures: tuple[AdvisedFigure, ...]

    @property
    def gpus(self) -> int:
        """GPUs of all replicas."""
        return self.split.gpus * self.replicas


def plan_language(model: ModelFacts, gpus: GpuFacts, demand: Demand, utilization: float) -> LanguagePlan:
    """Return the plan with the fewest GPUs. Raises Failure if nothing fits, or no division can meet the SLO."""
    checkpoint = model.checkpoint
    assert checkpoint is not None
    length = demand.tokens or model.context
    if not length:
        raise Failure(f"'{model.name}' has no context length: give --prompt-tokens and --output-tokens")
    if model.context and length > model.context:
        raise Failure(f"{length} tokens are above the {model.context} of '{model.name}'")
    workload = Workload(length=length, utilization=utilization, kv_bytes=max(checkpoint.other_bytes, 2))
    engine_plan = plan(checkpoint, Gpus(gpus.count, gpus.memory), workload)
    fitting = [split for split in engine_plan.splits if not split.problem]
    if not fitting:
        raise Failure(f"'{model.name}' does not fit: {engine_plan.reason}{_quantized(checkpoint, gpus, workload)}")
    quick = [split for split in fitting if not _too_slow(checkpoint, split, gpus, demand)]
    if not quick:
        raise Failure(_impossible(model.name, checkpoint, fitting, gpus, demand))
    options = [(split, ceil(demand.in_flight / split.sequences)) for split in quick]
    held = [option for option in options if option[0].gpus * option[1] <= gpus.count]
    if not held:
        split, replicas = min(options, key=lambda option: option[0].gpus * option[1])
        most = max(split.sequences * (gpus.count // split.gpus) for split in quick)
        raise Failure(
            f"'{model.name}': {demand.in_flight} sequences of {length} tokens in flight need {replicas} replicas of "
            f"{split.gpus} GPU{'s' if split.gpus > 1 else ''}, but there are {gpus.count} GPUs, which hold {most}; "
            "lower --load, --concurrency or the tokens, or add GPUs"
        )
    split, replicas = min(held, key=lambda option: (option[0].gpus * option[1], option[0].gpus, option[0].pipeline))
    limit = length_limit(model, length, split.tokens)
    figures = (*_figures(checkpoint, split, gpus, demand, length), limit)
    return LanguagePlan(split, replicas, length, int(limit.text), utilization, figures)


def length_limit(model: ModelFacts, length: int, held: int) -> AdvisedFigure:
    """Return the longest sequence to accept, where the KV cache holds `held` tokens.

    `length` sizes the machine: it is what requests have on average, and longer ones must not be refused.
    """
    name = "longest sequence"
    if not model.context:
        return AdvisedFigure(name, str(length), FigureSource.STATED, "the tokens asked for; the context is unknown")
    if model.context <= max(held, length):
        detail = f"the model's context; the machine is sized for {length} tokens"
        return AdvisedFigure(name, str(model.context), FigureSource.FILE, detail)
    detail = f"what the KV cache holds of the model's context of {model.context}; sized for {length} tokens"
    return AdvisedFigure(name, str(max(held, length)), FigureSource.RULE, detail)


def fastest_token(checkpoint: Checkpoint, split: Split, gpus: GpuFacts) -> float:
    """Return the seconds to read all matrices once, which every token of one sequence takes at least; 0 if unknown."""
    if not gpus.bandwidth or checkpoint.shape.family in _MIXTURES:
        return 0.0
    shape = checkpoint.shape
    looked_up = shape.embedding * checkpoint.other_bytes if shape.output else 0  # one row of it for each token
    return (checkpoint.weight_bytes - looked_up) / split.tensor / gpus.bandwidth


def fastest_prompt(checkpoint: Checkpoint, split: Split, gpus: GpuFacts, tokens: int) -> float:
    """Return the seconds of the arithmetic for a prompt at the peak speed; 0 if unknown."""
    if not gpus.flops or checkpoint.shape.family in _MIXTURES:
        return 0.0
    return 2.0 * sum(layer.split for layer in checkpoint.shape.layers) * tokens / (gpus.flops * split.tensor)


def _bounds(checkpoint: Checkpoint, split: Split, gpus: GpuFacts, demand: Demand) -> dict[str, float]:
    """Return the lower bound of each time of an SLO."""
    token = fastest_token(checkpoint, split, gpus)
    prompt = max(fastest_prompt(checkpoint, split, gpus, demand.prompt_tokens), token)
    return {"itl": token, "ttft": prompt, "latency": prompt + max(demand.output_tokens - 1, 0) * token}


def _too_slow(checkpoint: Checkpoint, split: Split, gpus: GpuFacts, demand: Demand) -> bool:
    bounds = _bounds(checkpoint, split, gpus, demand)
    return any(seconds < bounds[name] for name, seconds in demand.slo.items())


def _impossible(name: str, checkpoint: Checkpoint, fitting: Sequence[Split], gpus: GpuFacts, demand: Demand) -> str:
    best = min(fitting, key=lambda split: sum(_bounds(checkpoint, split, gpus, demand).values()))
    bounds = _bounds(checkpoint, best, gpus, demand)
    missed = [target for target, seconds in demand.slo.items() if seconds < bounds[target]]
    texts = [
        f"{target}:{duration_text(demand.slo[target]).replace(' ', '')} is impossible, the lower bound is "
        f"{duration_text(bounds[target])}"
        for target in missed
    ]
    possible = ",".join(f"{target}:{ceil(bounds[target] * 1000 * 1.5)}ms" for target in missed)
    return (
        f"'{name}': {'; '.join(texts)} with TP {best.tensor} × PP {best.pipeline} on {gpus.name}: weights of "
        f"{best.weights / GIB:.1f} GiB per GPU at {gpus.bandwidth / 1e9:.0f} GB/s {gpus.speeds_from}. Possible: --slo "
        f"{possible} (1.5 times the bound, {FigureSource.RULE}), quantized weights, or GPUs with faster memory"
    )


def _quantized(checkpoint: Checkpoint, gpus: GpuFacts, workload: Workload) -> str:
    """Return which quantizations would fit, as the rest of a sentence."""
    fits = []
    for name in _QUANTIZATIONS:
        if name == "fp8" and not gpus.has_fp8:
            continue
        try:
            smaller = read_checkpoint(checkpoint.path, quantization=name)
        except ConchError:
            continue
        if smaller.weight_bytes < checkpoint.weight_bytes:
            best = plan(smaller, Gpus(gpus.count, gpus.memory), workload).best
            if best is not None:
                fits.append(f"{name} with TP {best.tensor} × PP {best.pipeline}")
    return f"; quantized it fits these GPUs: {', '.join(fits)}" if fits else "; quantized it does not fit either"


def _figures(checkpoint: Checkpoint, split: Split, gpus: GpuFacts, demand: Demand, length: int) -> list[AdvisedFigure]:
    figures = [
        AdvisedFigure("weights per GPU", f"{split.weights / GIB:.1f} GiB", FigureSource.FILE, checkpoint.source),
        AdvisedFigure(
            "reserve per GPU", f"{split.reserve / GIB:.1f} GiB", FigureSource.RULE, "libraries, activations, logits"
        ),
        AdvisedFigure("sequences per replica", str(split.sequences), FigureSource.RULE, f"KV cache ÷ {length} tokens"),
    ]
    if token := fastest_token(checkpoint, split, gpus):
        detail = f"weights ÷ {gpus.bandwidth / 1e9:.0f} GB/s {gpus.speeds_from}: a lower bound, not a forecast"
        figures.append(AdvisedFigure("itl", f"≥ {duration_text(token)}", FigureSource.RULE, detail))
    if demand.prompt_tokens and (prompt := fastest_prompt(checkpoint, split, gpus, demand.prompt_tokens)):
        peak = f"peak {gpus.speeds_from}: a lower bound"
        detail = f"2 × parameters of the layers × {demand.prompt_tokens} tokens ÷ {peak}"
        figures.append(AdvisedFigure("ttft", f"≥ {duration_text(prompt)}", FigureSource.RULE, detail))
    return figures
