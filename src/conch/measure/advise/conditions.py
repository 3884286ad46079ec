"""Conditions on facts, as data: rules can be evaluated and printed."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from conch.measure.advise.facts import ModelForm


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The facts that rules ask for: of one model, and of all that share the machine."""

    form: ModelForm
    is_language: bool
    models: int
    languages: int
    tensors: int  # models that are not language models
    has_ensemble: bool
    has_gpu: bool
    is_intel: bool
    prefers_latency: bool
    is_pipeline: bool
    has_onnxruntime: bool  # in its configuration
    has_openvino: bool
    has_backend: bool


Flag: TypeAlias = Literal[
    "is_language",
    "has_ensemble",
    "has_gpu",
    "is_intel",
    "prefers_latency",
    "is_pipeline",
    "has_onnxruntime",
    "has_openvino",
    "has_backend",
]
Count: TypeAlias = Literal["models", "languages", "tensors"]


@dataclass(frozen=True, slots=True)
class Is:
    """A fact is true."""

    fact: Flag


@dataclass(frozen=True, slots=True)
class FormIn:
    """The model has one of these forms."""

    forms: tuple[ModelForm, ...]


@dataclass(frozen=True, slots=True)
class CountFrom:
    """A number is not below a bound."""

    fact: Count
    bound: int


@dataclass(frozen=True, slots=True)
class Not:
    """A condition does not hold."""

    condition: "Condition"


@dataclass(frozen=True, slots=True)
class Every:
    """All conditions hold; true without any."""

    conditions: "tuple[Condition, ...]"


Condition: TypeAlias = Is | FormIn | CountFrom | Not | Every


def holds(condition: Condition, situation: Situation) -> bool:
    """Evaluate a condition."""
    match condition:
        case Is(fact):
            return bool(getattr(situation, fact))
        case FormIn(forms):
            return situation.form in forms
        case CountFrom(fact, bound):
            return bool(getattr(situation, fact) >= bound)
        case Not(inner):
            return not holds(inner, situation)
        case Every(conditions):
            return all(holds(condition, situation) for condition in conditions)


def as_text(condition: Condition) -> str:
    """Return a condition in words."""
    match condition:
        case Is(fact):
            return fact.replace("_", " ")
        case FormIn(forms):
            return f"form is {' or '.join(forms)}"
        case CountFrom(fact, bound):
            return f"{fact.replace('_', ' ')} ≥ {bound}"
        case Not(inner):
            return f"not ({as_text(inner)})"
        case Every(conditions):
            return " and ".join(map(as_text, conditions)) or "always"
