"""Advise: apply the rules to each model, size instances, threads and GPUs, and choose the layout."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil

from conch.base.durations import duration_text
from conch.measure.advise.advice_facts import (
    CONFIGURED_FORMS,
    GIB,
    TORCH_FORMS,
    AdvisedFigure,
    Demand,
    Failure,
    FigureSource,
    MachineFacts,
    ModelFacts,
    ModelForm,
    size_text,
)
from conch.measure.advise.ensemble import NotConnectable, PipelineEnsemble, plan_ensemble
from conch.measure.advise.language import UTILIZATION, LanguagePlan, length_limit, plan_language
from conch.measure.advise.rules import BACKEND_RULES, LAYOUT_RULES, AdviceDecision, AdvisedBackend, Situation, decide

# Cores of one Python stage: 4 stages were best on 16 cores in a published detection pipeline.
_CORES_PER_PYTHON_STAGE = 4
_CORES_PER_SESSION = 8  # beyond which threads of one inference bring little
_MAX_BATCH_SIZE = 8
# Memory of a model on a GPU beside its weights: as much again for activations, and CUDA.
_ACTIVATIONS, _CUDA_BYTES = 2, GIB
_MEMORY_SHARE = 0.8  # of a machine, for models on CPUs


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAdvice:
    """The advice for one model. GPUs are numbered within a replica's server."""

    model: ModelFacts
    decision: AdviceDecision
    backend: AdvisedBackend
    precision: str = ""
    instances: int = 1
    threads: int = 0
    gpus: tuple[int, ...] = ()
    max_batch_size: int = 0
    language: LanguagePlan | None = None
    cache_gib: int = 0  # of a language model on CPUs
    length: int = 0
    figures: tuple[AdvisedFigure, ...] = ()

    @property
    def replicas(self) -> int:
        """Servers that have this model."""
        return self.language.replicas if self.language else 1


@dataclass(frozen=True, slots=True)
class Advice:
    """The advice for all models on a machine."""

    machine: MachineFacts
    demand: Demand
    layout: AdviceDecision
    models: tuple[ModelAdvice, ...]
    notes: tuple[str, ...] = field(default=())
    ensemble: PipelineEnsemble | None = None  # to be written


def advise(models: Sequence[ModelFacts], machine: MachineFacts, demand: Demand) -> Advice:
    """Return the advice. Raises Failure if a target is impossible, or nothing fits."""
    names = [model.name for model in models]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise Failure(f"two models have the name '{twice[0]}': rename a file or folder")
    decisions = [decide(BACKEND_RULES, _situation(model, models, machine, demand)) for model in models]
    for model, decision in zip(models, decisions, strict=True):
        if decision.chosen is None:
            raise Failure(_nothing(model, decision))
    plans = _language_plans(models, machine, demand)
    free = (machine.gpus.count if machine.gpus else 0) - sum(plan.gpus for plan in plans.values())
    numbers = _gpu_numbers(plans)
    advised = []
    for model, decision in zip(models, decisions, strict=True):
        assert decision.chosen is not None
        backend = AdvisedBackend(decision.chosen.option)
        if plan := plans.get(model.name):
            advised.append(_of_plan(model, decision, backend, plan, numbers[model.name]))
        elif model.is_language:
            advised.append(_on_cpu(model, decision, backend, machine, demand))
        else:
            first = sum(plan.split.gpus for plan in plans.values())
            gpu = first if free > 0 else 0
            advised.append(_tensor_model(model, decision, backend, machine, demand, gpu))
    layout = decide(LAYOUT_RULES, _situation(models[0], models, machine, demand))
    notes = list(_notes(advised, machine, free))
    ensemble = None
    if demand.is_pipeline and len(models) > 1 and not any(model.form is ModelForm.ENSEMBLE for model in models):
        try:
            ensemble = plan_ensemble([(step.model, step.max_batch_size) for step in advised])
        except NotConnectable as reason:
            notes.append(f"the ensemble's config.pbtxt is not written: {reason}")
    return Advice(machine, demand, layout, tuple(advised), tuple(notes), ensemble)


def _situation(model: ModelFacts, models: Sequence[ModelFacts], machine: MachineFacts, demand: Demand) -> Situation:
    languages = sum(model.is_language for model in models)
    return Situation(
        form=model.form,
        is_language=model.is_language,
        models=len(models),
        languages=languages,
        tensors=len(models) - languages,
        has_ensemble=any(model.form is ModelForm.ENSEMBLE for model in models),
        has_gpu=machine.gpus is not None,
        is_intel=machine.is_intel,
        prefers_latency=demand.prefers_latency,
        is_pipeline=demand.is_pipeline,
        has_onnxruntime=model.backend.startswith("onnxruntime"),
        has_openvino=model.backend == "openvino",
        has_backend=bool(model.backend),
    )


def _nothing(model: ModelFacts, decision: AdviceDecision) -> str:
    why = "; ".join(f"{reason.option}: {reason.text}" for reason in decision.excluded)
    return f"no backend can serve '{model.name}' ({model.form}){': ' + why if why else ''}"


def _language_plans(models: Sequence[ModelFacts], machine: MachineFacts, demand: Demand) -> dict[str, LanguagePlan]:
    """Return the plan of each checkpoint. Raises Failure if they need more GPUs than there are."""
    gpus, checkpoints = machine.gpus, [model for model in models if model.form is ModelForm.CHECKPOINT]
    if gpus is None or not checkpoints:
        return {}
    plans = {model.name: plan_language(model, gpus, demand, UTILIZATION) for model in checkpoints}
    needed = sum(plan.gpus for plan in plans.values())
    if needed > gpus.count:
        needs = ", ".join(f"'{name}' {plan.gpus}" for name, plan in plans.items())
        missing = f"but there are {gpus.count}: add GPUs or lower the load"
        raise Failure(f"the models need {needed} GPUs ({needs}), {missing}")
    beside = _beside(models)
    if needed == gpus.count and beside:
        share = int((UTILIZATION - beside / gpus.memory) * 100) / 100
        if share <= 0:
            raise Failure(f"the other models need {beside / GIB:.1f} GiB of a GPU, and none is left: add a GPU")
        plans = {model.name: plan_language(model, gpus, demand, share) for model in checkpoints}
        if sum(plan.gpus for plan in plans.values()) > gpus.count:
            raise Failure("the language models fill all GPUs, and the other models do not fit beside them: add a GPU")
    return plans


def _beside(models: Sequence[ModelFacts]) -> int:
    """Return the bytes that models without a GPU for themselves need on one."""
    on_gpu = [model.size for model in models if model.form in (ModelForm.ONNX, *TORCH_FORMS, ModelForm.PLAN)]
    return sum(_ACTIVATIONS * size for size in on_gpu) + (_CUDA_BYTES if on_gpu else 0)


def _gpu_numbers(plans: dict[str, LanguagePlan]) -> dict[str, tuple[int, ...]]:
    """Number the GPUs of one server: models with most replicas first, so that all servers number them alike."""
    numbers, begin = {}, 0
    for name, plan in sorted(plans.items(), key=lambda entry: -entry[1].replicas):
        numbers[name] = tuple(range(begin, begin + plan.split.gpus))
        begin += plan.split.gpus
    return numbers


def _of_plan(
    model: ModelFacts, decision: AdviceDecision, backend: AdvisedBackend, plan: LanguagePlan, gpus: tuple[int, ...]
) -> ModelAdvice:
    return ModelAdvice(
        model=model,
        decision=decision,
        backend=backend,
        precision=f"{model.precision} as stored",
        gpus=gpus,
        language=plan,
        length=plan.limit,
        figures=plan.figures,
    )


def _on_cpu(
    model: ModelFacts, decision: AdviceDecision, backend: AdvisedBackend, machine: MachineFacts, demand: Demand
) -> ModelAdvice:
    """Advise a language model on CPUs: memory of the weights and of the KV cache."""
    length = demand.tokens or model.context
    if not length:
        raise Failure(f"'{model.name}' has no context length: give --prompt-tokens and --output-tokens")
    usable = machine.memory * _MEMORY_SHARE
    cache = demand.in_flight * length * model.kv_bytes_per_token
    if model.size + cache > usable:
        tokens = int(max(usable - model.size, 0) / model.kv_bytes_per_token) if model.kv_bytes_per_token else 0
        raise Failure(
            f"'{model.name}' does not fit: {model.size / GIB:.1f} GiB of weights and {cache / GIB:.1f} GiB of KV cache "
            f"for {demand.in_flight} × {length} tokens exceed {usable / GIB:.1f} GiB ({_MEMORY_SHARE:.0%} of the "
            f"memory); {tokens} tokens would fit: lower --concurrency or the tokens, or take a smaller quantization"
        )
    figures = [
        AdvisedFigure("weights", size_text(model.size), FigureSource.FILE, "size of the file"),
    ]
    if model.kv_bytes_per_token:
        detail = f"{demand.in_flight} × {length} tokens, 16 bits"
        figures.append(AdvisedFigure("KV cache", size_text(cache), FigureSource.FILE, detail))
    if machine.bandwidth:
        token = model.size / machine.bandwidth
        _check_bound(model, "itl", token, demand, f"{model.size / GIB:.1f} GiB at {machine.bandwidth / 1e9:g} GB/s")
        detail = f"weights ÷ {machine.bandwidth / 1e9:g} GB/s, stated: a lower bound, not a forecast"
        figures.append(AdvisedFigure("itl", f"≥ {duration_text(token)}", FigureSource.RULE, detail))
    cache_gib = max(ceil(cache / GIB), 1)
    held = int(cache_gib * GIB / model.kv_bytes_per_token) if model.kv_bytes_per_token else length
    limit = length_limit(model, length, held)
    figures.append(limit)
    return ModelAdvice(
        model=model,
        decision=decision,
        backend=backend,
        precision=f"{model.precision} as stored",
        threads=machine.cores,
        cache_gib=cache_gib,
        length=int(limit.text),
        figures=tuple(figures),
    )


def _check_bound(model: ModelFacts, target: str, bound: float, demand: Demand, why: str) -> None:
    """Raise Failure if a target of the SLO is below its lower bound."""
    if demand.slo.get(target, bound) < bound:
        raise Failure(
            f"'{model.name}': {target}:{duration_text(demand.slo[target]).replace(' ', '')} is impossible, the lower "
            f"bound is {duration_text(bound)} ({why}). Possible: --slo {target}:{ceil(bound * 1500)}ms (1.5 times the "
            f"bound, {FigureSource.RULE}), a smaller quantization, or faster memory"
        )


def _tensor_model(
    model: ModelFacts,
    decision: AdviceDecision,
    backend: AdvisedBackend,
    machine: MachineFacts,
    demand: Demand,
    gpu: int,
) -> ModelAdvice:
    """Advise the instances and threads of a model that is not a language model."""
    batch = _MAX_BATCH_SIZE if model.is_batchable else 0
    base = ModelAdvice(model=model, decision=decision, backend=backend)
    if model.form in CONFIGURED_FORMS:
        return base
    size = AdvisedFigure("file", size_text(model.size), FigureSource.FILE)
    if backend is AdvisedBackend.PYTHON:
        count = max(machine.cores // _CORES_PER_PYTHON_STAGE, 1)
        detail = f"one for {_CORES_PER_PYTHON_STAGE} cores: 4 were best on 16 in a published detection pipeline"
        return replace(
            base, instances=count, figures=(AdvisedFigure("instances", str(count), FigureSource.RULE, detail),)
        )
    if machine.gpus is not None and model.form is not ModelForm.IR:
        need = _ACTIVATIONS * model.size + _CUDA_BYTES
        if need > machine.gpus.memory:
            raise Failure(
                f"'{model.name}' does not fit: it needs {need / GIB:.1f} GiB of a GPU (twice its file and 1 GiB for "
                f"CUDA, {FigureSource.RULE}), which has {machine.gpus.memory / GIB:.1f} GiB"
            )
        figure = AdvisedFigure(
            "GPU memory", f"{need / GIB:.1f} GiB", FigureSource.RULE, "twice the file, and 1 GiB for CUDA"
        )
        precision = "FP16" if backend is AdvisedBackend.ONNXRUNTIME_TENSORRT else "as stored"
        return replace(base, precision=precision, gpus=(gpu,), max_batch_size=batch, figures=(size, figure))
    figures = [size]
    if machine.bandwidth:
        bound = model.size / machine.bandwidth
        _check_bound(model, "latency", bound, demand, f"{size_text(model.size)} at {machine.bandwidth / 1e9:g} GB/s")
    alone = demand.prefers_latency or "latency" in demand.slo
    count = 1 if alone else max(machine.cores // _CORES_PER_SESSION, 1)
    detail = "all cores answer one request soonest" if alone else f"one for {_CORES_PER_SESSION} cores"
    figures.append(AdvisedFigure("instances", f"{count} × {machine.cores // count} threads", FigureSource.RULE, detail))
    return replace(
        base,
        precision="FP32" if model.form is ModelForm.ONNX else "as stored",
        instances=count,
        threads=machine.cores // count,
        max_batch_size=batch,
        figures=tuple(figures),
    )


def _notes(models: Sequence[ModelAdvice], machine: MachineFacts, free: int) -> list[str]:
    notes = []
    plans = [model.language for model in models if model.language]
    if plans and machine.gpus and not (machine.gpus.bandwidth and machine.gpus.flops):
        figures = f"{machine.gpus.count}×{machine.gpus.name} {machine.gpus.memory / GIB:.0f}GiB"
        notes.append(
            f"the speed of '{machine.gpus.name}' is not in the table of data sheets, so lower bounds of times are "
            f"missing: add it to --machine, such as '{figures} 1600GB/s 500TFLOPS'"
        )
    if plans and free > 0:
        notes.append(f"{free} of {machine.gpus.count if machine.gpus else 0} GPUs stay free")
    if any(model.backend in (AdvisedBackend.ONNXRUNTIME, AdvisedBackend.OPENVINO) for model in models):
        notes.append("latency of the models other than language models: unknown without a measurement")
    kept = [model.model for model in models if model.model.form in (ModelForm.OTHER, ModelForm.TREES)]
    if kept:
        names = ", ".join(f"'{model.name}' ({model.backend or AdvisedBackend.FIL})" for model in kept)
        notes.append(f"nothing is advised for {names}: the configuration stays as it is; conch tune measures it")
    return notes
