"""Print an advice as text, or as a JSON document."""

from collections.abc import Iterator
from typing import Any

from conch.base.durations import duration_text
from conch.measure.advise.advice import Advice, ModelAdvice
from conch.measure.advise.advice_facts import GIB, AdvisedFigure, Demand, MachineFacts
from conch.measure.advise.configuration import command_lines, configuration
from conch.measure.advise.rules import BACKEND_RULES, LAYOUT_RULES, MATRIX, MEASURED, AdviceDecision, Reason

_DEFAULT_REPOSITORY = "models"


def text_lines(advice: Advice, repository: str = "") -> Iterator[str]:
    """Yield the lines of the report."""
    yield f"Machine: {_machine(advice.machine)} [{advice.machine.source}]"
    yield f"Demand: {_demand(advice.demand)}"
    assert advice.layout.chosen is not None
    yield f"Layout: {advice.layout.chosen.option}"
    yield f"  because {advice.layout.chosen.text}"
    for reason in advice.layout.excluded:
        yield f"  not {reason.option}: {reason.text}"
    for model in advice.models:
        yield ""
        yield from _model(model)
    for note in advice.notes:
        yield f"\nNote: {note}."
    for file in configuration(advice):
        yield f"\n{file.path}"
        yield from (f"  {line}" for line in file.lines())
    yield ""
    yield from command_lines(advice, repository or _DEFAULT_REPOSITORY)


def _model(advised: ModelAdvice) -> Iterator[str]:
    chosen = advised.decision.chosen
    assert chosen is not None
    yield f"{advised.model.name} ({advised.model.form}): {', '.join(_choices(advised))}"
    yield f"  because {chosen.text}"
    for reason in advised.decision.excluded:
        yield f"  not {reason.option}: {reason.text}"
    for reason in advised.decision.alternatives:
        how = "" if reason.rule == MEASURED else ", by a later rule"
        yield f"  or {reason.option}{how}: {reason.text}"
    for figure in advised.figures:
        yield f"  {_figure(figure)}"


def _choices(advised: ModelAdvice) -> Iterator[str]:
    yield str(advised.backend)
    if advised.precision:
        yield advised.precision
    if plan := advised.language:
        yield f"TP {plan.split.tensor} × PP {plan.split.pipeline}"
        yield _counted(plan.replicas, "replica")
        yield f"{_counted(plan.split.gpus, 'GPU')} each" if plan.replicas > 1 else _counted(plan.gpus, "GPU")
    elif advised.gpus:
        yield f"1 instance on GPU {advised.gpus[0]}"
    elif advised.threads or advised.figures:
        yield _counted(advised.instances, "instance")
        if advised.threads:
            yield _counted(advised.threads, "thread")


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number > 1 else ''}"


def _figure(figure: AdvisedFigure) -> str:
    return f"{figure.name} {figure.text} [{figure.source}{': ' + figure.detail if figure.detail else ''}]"


def _machine(machine: MachineFacts) -> str:
    gpus = machine.gpus
    parts = [f"{gpus.count} × {gpus.name} {gpus.memory / GIB:.0f} GiB"] if gpus else []
    return ", ".join([*parts, _counted(machine.cores, "core"), f"{machine.memory / GIB:.0f} GiB"])


def _demand(demand: Demand) -> str:
    parts = [f"{name} ≤ {duration_text(seconds)}" for name, seconds in demand.slo.items()]
    parts += [f"{demand.rate:g} requests/s"] if demand.rate else []
    parts += [f"{demand.prompt_tokens} prompt tokens"] if demand.prompt_tokens else []
    parts += [f"{demand.output_tokens} output tokens"] if demand.output_tokens else []
    parts += ["lowest latency"] if demand.prefers_latency else []
    source = "stated" if demand.concurrency else "rule of thumb: Little's law" if demand.in_flight > 1 else "default"
    return ", ".join([*parts, f"{demand.in_flight} in flight"]) + f" [{source}]"


def as_document(advice: Advice, repository: str = "") -> dict[str, Any]:
    """Return the advice for JSON."""
    return {
        "machine": {
            "cores": advice.machine.cores,
            "memory_bytes": advice.machine.memory,
            "gpus": advice.machine.gpus.count if advice.machine.gpus else 0,
            "source": str(advice.machine.source),
        },
        "in_flight": advice.demand.in_flight,
        "layout": _decision(advice.layout),
        "models": [_model_document(model) for model in advice.models],
        "notes": list(advice.notes),
        "files": {file.path: file.text for file in configuration(advice)},
        "commands": command_lines(advice, repository or _DEFAULT_REPOSITORY),
    }


def _reason(reason: Reason) -> dict[str, str]:
    return {"option": str(reason.option), "rule": reason.rule, "reason": reason.text}


def _decision(decision: AdviceDecision) -> dict[str, Any]:
    assert decision.chosen is not None
    return {
        **_reason(decision.chosen),
        "excluded": [_reason(reason) for reason in decision.excluded],
        "alternatives": [_reason(alternative) for alternative in decision.alternatives],
    }


def _model_document(advised: ModelAdvice) -> dict[str, Any]:
    plan = advised.language
    return {
        "name": advised.model.name,
        "form": str(advised.model.form),
        "backend": _decision(advised.decision),
        "precision": advised.precision,
        "instances": advised.instances,
        "threads": advised.threads,
        "gpus": list(advised.gpus),
        "tensor_parallel_size": plan.split.tensor if plan else 1,
        "pipeline_parallel_size": plan.split.pipeline if plan else 1,
        "replicas": advised.replicas,
        "figures": [
            {"name": figure.name, "value": figure.text, "source": str(figure.source), "detail": figure.detail}
            for figure in advised.figures
        ],
    }


def rule_lines() -> Iterator[str]:
    """Yield the rules and the matrix in words."""
    for title, rules in (("Backends", BACKEND_RULES), ("Layouts", LAYOUT_RULES)):
        yield f"{title}: of the options that are not excluded, the first recommended is taken"
        for rule in rules:
            verb = "exclude" if rule.excludes else "take"
            yield f"  {rule.name}: if {rule.when.text}: {verb} {rule.option}, because {rule.reason} [{rule.source}]"
        yield ""
    yield "Matrix (stars of 5): vLLM | TensorRT-LLM | vLLM behind the python backend"
    for row in MATRIX:
        yield f"  {row[0]}: {' | '.join(row[1:])}"
