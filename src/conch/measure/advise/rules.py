"""The decision matrix and tree of inference servers as rules: predicate, option, reason.

Of the options that no rule excludes, the one of the first rule that recommends it is taken.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from conch.measure.advise.advice_facts import TORCH_FORMS, FigureSource, ModelForm

MEASURED = "measured"
"""In place of a rule's name, where measurements decided."""


class AdvisedBackend(StrEnum):
    """What runs a model."""

    VLLM = "vllm"
    TENSORRT_LLM = "tensorrtllm"
    OPENVINO_GENAI = "openvino_genai"
    ONNXRUNTIME = "onnxruntime"
    ONNXRUNTIME_TENSORRT = "onnxruntime with TensorRT"
    OPENVINO = "openvino"
    PYTORCH = "pytorch"
    TENSORRT = "tensorrt"
    PYTHON = "python"
    ENSEMBLE = "ensemble"
    FIL = "fil"
    CONFIGURED = "as configured"


class Layout(StrEnum):
    """The shape of the repository."""

    SINGLE = "one model"
    SEVERAL = "several models in one repository"
    ENSEMBLE = "ensemble"
    BLS = "BLS"


Option = AdvisedBackend | Layout


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


@dataclass(frozen=True, slots=True)
class Predicate:
    """A condition on a situation, with its words."""

    text: str
    holds: Callable[[Situation], bool]

    def __and__(self, other: "Predicate") -> "Predicate":
        return Predicate(f"{self.text} and {other.text}", lambda facts: self.holds(facts) and other.holds(facts))

    def __invert__(self) -> "Predicate":
        return Predicate(f"not ({self.text})", lambda facts: not self.holds(facts))


def _form(*forms: ModelForm) -> Predicate:
    return Predicate(f"form is {' or '.join(forms)}", lambda facts: facts.form in forms)


def _is(name: str) -> Predicate:
    return Predicate(name.replace("_", " "), lambda facts: bool(getattr(facts, name)))


def _at_least(name: str, bound: int) -> Predicate:
    return Predicate(f"{name} ≥ {bound}", lambda facts: bool(getattr(facts, name) >= bound))


@dataclass(frozen=True, slots=True)
class AdviceRule:
    """One rule. `excludes`: its option is not possible, instead of recommended."""

    name: str
    when: Predicate
    option: Option
    reason: str
    source: FigureSource = FigureSource.RULE
    excludes: bool = False


def _excluded(
    name: str, when: Predicate, option: Option, reason: str, source: FigureSource = FigureSource.RULE
) -> AdviceRule:
    return AdviceRule(name, when, option, reason, source, excludes=True)


_ALWAYS = Predicate("always", lambda _facts: True)
_CHECKPOINT, _GGUF, _IR_LANGUAGE = _form(ModelForm.CHECKPOINT), _form(ModelForm.GGUF), _form(ModelForm.IR_LANGUAGE)
_ONNX, _IR, _PLAN = _form(ModelForm.ONNX), _form(ModelForm.IR), _form(ModelForm.PLAN)
_GPU, _LATENCY, _PIPELINE = _is("has_gpu"), _is("prefers_latency"), _is("is_pipeline")
_OTHERS = _at_least("tensors", 1)
_MODELS = _at_least("models", 2)
_FILE, _STATED = FigureSource.FILE, FigureSource.STATED
_NO_GPU = "there is no NVIDIA GPU"
_NO_IR = "it does not read OpenVINO IR"
_B = AdvisedBackend

# fmt: off
BACKEND_RULES: tuple[AdviceRule, ...] = (
    _excluded("vllm-gpu", _CHECKPOINT & ~_GPU, _B.VLLM, "there is no GPU"),
    _excluded("trtllm-gpu", _CHECKPOINT & ~_GPU, _B.TENSORRT_LLM, _NO_GPU, _STATED),
    _excluded("plan-gpu", _PLAN & ~_GPU, _B.TENSORRT, _NO_GPU, _STATED),
    _excluded("onnx-trt-gpu", _ONNX & ~_GPU, _B.ONNXRUNTIME_TENSORRT, "there is no GPU", _STATED),
    _excluded("vllm-gguf", _GGUF, _B.VLLM, "it serves checkpoints; its support of GGUF is experimental"),
    _excluded("trtllm-gguf", _GGUF, _B.TENSORRT_LLM, "it does not read GGUF"),
    _excluded("vllm-ir", _IR_LANGUAGE, _B.VLLM, _NO_IR),
    _excluded("trtllm-ir", _IR_LANGUAGE, _B.TENSORRT_LLM, _NO_IR),
    _excluded("genai-checkpoint", _CHECKPOINT, _B.OPENVINO_GENAI,
              "it needs GGUF or OpenVINO IR: convert the checkpoint with `optimum-cli export openvino`"),
    # Language models: the tree's first and last question.
    AdviceRule("lowest-latency", _CHECKPOINT & _GPU & _LATENCY, _B.TENSORRT_LLM,
               "lowest latency is required: the matrix gives TensorRT the fastest kernels, at the price of a harder "
               "deployment (4 of 5 stars; vLLM 2 of 5)"),
    AdviceRule("language-only", _CHECKPOINT & _GPU & ~_OTHERS, _B.VLLM,
               "only language models: simple and fast (throughput and latency 5 of 5 stars, deployment one command)"),
    AdviceRule("language-and-others", _CHECKPOINT & _GPU, _B.VLLM,
               "a language model beside other models: vLLM as one backend of a server that runs several frameworks"),
    AdviceRule("gguf", _GGUF, _B.OPENVINO_GENAI, "reads GGUF directly and runs on CPUs, without conversion"),
    AdviceRule("ir-language", _IR_LANGUAGE, _B.OPENVINO_GENAI,
               "the only backend for language models in OpenVINO IR", _FILE),
    # Other models: what a repository configures stays.
    AdviceRule("configured-onnxruntime", _ONNX & _is("has_onnxruntime"), _B.ONNXRUNTIME,
               "its config.pbtxt names onnxruntime", _FILE),
    AdviceRule("configured-openvino", _ONNX & _is("has_openvino"), _B.OPENVINO,
               "its config.pbtxt names openvino", _FILE),
    # The tree's branch without language models.
    AdviceRule("onnx-latency", _ONNX & _GPU & _LATENCY, _B.ONNXRUNTIME_TENSORRT,
               "lowest latency is required: TensorRT compiles the ONNX file for this GPU, in FP16"),
    AdviceRule("onnx-gpu", _ONNX & _GPU, _B.ONNXRUNTIME, "runs ONNX on GPUs without conversion"),
    AdviceRule("onnx-intel", _ONNX & _is("is_intel"), _B.OPENVINO,
               "reads ONNX and is optimized for Intel's processors"),
    AdviceRule("onnx-cpu", _ONNX, _B.ONNXRUNTIME, "runs ONNX without conversion on any CPU"),
    AdviceRule("ir", _IR, _B.OPENVINO, "the only backend for OpenVINO IR", _FILE),
    AdviceRule("torch", _form(*TORCH_FORMS), _B.PYTORCH, "the only backend for TorchScript and torch.export", _FILE),
    AdviceRule("trees", _form(ModelForm.TREES), _B.FIL, "the only backend for tree models", _FILE),
    AdviceRule("configured", _form(ModelForm.OTHER) & _is("has_backend"), _B.CONFIGURED,
               "its config.pbtxt names the backend", _FILE),
    AdviceRule("plan", _PLAN, _B.TENSORRT, "the only backend for TensorRT plans", _FILE),
    AdviceRule("python", _form(ModelForm.PYTHON), _B.PYTHON, "custom logic in Python", _FILE),
    AdviceRule("ensemble", _form(ModelForm.ENSEMBLE), _B.ENSEMBLE, "its steps are models of the repository", _FILE),
)

LAYOUT_RULES: tuple[AdviceRule, ...] = (
    AdviceRule("keep-ensemble", _is("has_ensemble"), Layout.ENSEMBLE,
               "the repository has an ensemble: tensors pass between its steps inside the server", _FILE),
    AdviceRule("multi-modal-pipeline", _PIPELINE & _at_least("languages", 1) & _OTHERS, Layout.ENSEMBLE,
               "image understanding before a language model is an ensemble, with a Python step that writes the prompt"),
    AdviceRule("pipeline", _PIPELINE & _MODELS, Layout.ENSEMBLE,
               "each request passes all models in a fixed order: one request instead of one for each step"),
    AdviceRule("several", _MODELS, Layout.SEVERAL,
               "several models or frameworks: one server, one address, one set of metrics"),
    AdviceRule("single", _ALWAYS, Layout.SINGLE, "a single model needs no more"),
    _excluded("bls", _MODELS, Layout.BLS,
              "for paths that depend on the data, such as loops and conditions; a fixed order needs no code"),
)

# Dimension, then vLLM, TensorRT-LLM, and vLLM behind the python backend: stars of 5, or words.
MATRIX: tuple[tuple[str, str, str, str], ...] = (
    ("models", "language models only", "language models, vision, speech, any", "language models, any"),
    ("throughput", "5", "5", "4"),
    ("latency", "5", "4", "3"),
    ("difficulty of deployment", "2", "4", "3"),
    ("several models", "no", "yes", "yes"),
    ("several frameworks", "no", "yes", "yes"),
)
# fmt: on


@dataclass(frozen=True, slots=True)
class Reason:
    """An option, the rule that speaks for or against it, and its words."""

    option: Option
    rule: str
    text: str


@dataclass(frozen=True, slots=True)
class AdviceDecision:
    """The option taken; None if all are excluded or none was recommended."""

    chosen: Reason | None
    excluded: tuple[Reason, ...]
    alternatives: tuple[Reason, ...]  # recommended by a later rule


def decide(rules: Sequence[AdviceRule], situation: Situation) -> AdviceDecision:
    """Evaluate all rules."""
    held = [rule for rule in rules if rule.when.holds(situation)]
    excluded = _first_of_each(rule for rule in held if rule.excludes)
    impossible = {reason.option for reason in excluded}
    possible = _first_of_each(rule for rule in held if not rule.excludes and rule.option not in impossible)
    return AdviceDecision(possible[0] if possible else None, tuple(excluded), tuple(possible[1:]))


def _first_of_each(rules: Iterable[AdviceRule]) -> list[Reason]:
    reasons: dict[Option, Reason] = {}
    for rule in rules:
        reasons.setdefault(rule.option, Reason(rule.option, rule.name, f"{rule.reason} [{rule.source}]"))
    return list(reasons.values())
