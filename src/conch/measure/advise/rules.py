"""The decision matrix and tree of inference servers as rules: facts → recommendation or exclusion, with the reason.

Of the options that no rule excludes, the one of the first rule that recommends it is taken.
"""

from dataclasses import dataclass
from enum import StrEnum

from conch.measure.advise.conditions import Condition, CountFrom, Every, FormIn, Is, Not
from conch.measure.advise.facts import TORCH_FORMS, FigureSource, ModelForm


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


@dataclass(frozen=True, slots=True)
class AdviceRule:
    """One rule. `excludes`: its option is not possible, instead of recommended."""

    name: str
    when: Condition
    option: Option
    reason: str
    source: FigureSource = FigureSource.RULE
    excludes: bool = False


_CHECKPOINT, _GGUF = FormIn((ModelForm.CHECKPOINT,)), FormIn((ModelForm.GGUF,))
_IR_LANGUAGE = FormIn((ModelForm.IR_LANGUAGE,))
_ONNX, _IR, _PLAN = FormIn((ModelForm.ONNX,)), FormIn((ModelForm.IR,)), FormIn((ModelForm.PLAN,))
_GPU, _LATENCY = Is("has_gpu"), Is("prefers_latency")
_NO_GPU = "there is no NVIDIA GPU"
_CPU_CHECKPOINT = Every((_CHECKPOINT, Not(_GPU)))

BACKEND_RULES: tuple[AdviceRule, ...] = (
    # Exclusions.
    AdviceRule(
        "vllm-gpu",
        _CPU_CHECKPOINT,
        AdvisedBackend.VLLM,
        "there is no GPU",
        excludes=True,
    ),
    AdviceRule("trtllm-gpu", _CPU_CHECKPOINT, AdvisedBackend.TENSORRT_LLM, _NO_GPU, FigureSource.STATED, excludes=True),
    AdviceRule(
        "plan-gpu", Every((_PLAN, Not(_GPU))), AdvisedBackend.TENSORRT, _NO_GPU, FigureSource.STATED, excludes=True
    ),
    AdviceRule(
        "onnx-trt-gpu",
        Every((_ONNX, Not(_GPU))),
        AdvisedBackend.ONNXRUNTIME_TENSORRT,
        "there is no GPU",
        FigureSource.STATED,
        excludes=True,
    ),
    AdviceRule(
        "vllm-gguf",
        _GGUF,
        AdvisedBackend.VLLM,
        "it serves checkpoints; its support of GGUF is experimental",
        excludes=True,
    ),
    AdviceRule("trtllm-gguf", _GGUF, AdvisedBackend.TENSORRT_LLM, "it does not read GGUF", excludes=True),
    AdviceRule("vllm-ir", _IR_LANGUAGE, AdvisedBackend.VLLM, "it does not read OpenVINO IR", excludes=True),
    AdviceRule("trtllm-ir", _IR_LANGUAGE, AdvisedBackend.TENSORRT_LLM, "it does not read OpenVINO IR", excludes=True),
    AdviceRule(
        "genai-checkpoint",
        _CHECKPOINT,
        AdvisedBackend.OPENVINO_GENAI,
        "it needs GGUF or OpenVINO IR: convert the checkpoint with `optimum-cli export openvino`",
        excludes=True,
    ),
    # Language models: the tree's first and last question.
    AdviceRule(
        "lowest-latency",
        Every((_CHECKPOINT, _GPU, _LATENCY)),
        AdvisedBackend.TENSORRT_LLM,
        "lowest latency is required: the matrix gives TensorRT the fastest kernels, at the price of a harder "
        "deployment (4 of 5 stars; vLLM 2 of 5)",
    ),
    AdviceRule(
        "language-only",
        Every((_CHECKPOINT, _GPU, Not(CountFrom("tensors", 1)))),
        AdvisedBackend.VLLM,
        "only language models: simple and fast (throughput and latency 5 of 5 stars, deployment one command)",
    ),
    AdviceRule(
        "language-and-others",
        Every((_CHECKPOINT, _GPU)),
        AdvisedBackend.VLLM,
        "a language model beside other models: vLLM as one backend of a server that runs several frameworks",
    ),
    AdviceRule(
        "gguf", _GGUF, AdvisedBackend.OPENVINO_GENAI, "reads GGUF directly and runs on CPUs, without conversion"
    ),
    AdviceRule(
        "ir-language",
        _IR_LANGUAGE,
        AdvisedBackend.OPENVINO_GENAI,
        "the only backend for language models in OpenVINO IR",
        FigureSource.FILE,
    ),
    # Other models: what a repository configures stays.
    AdviceRule(
        "configured-onnxruntime",
        Every((_ONNX, Is("has_onnxruntime"))),
        AdvisedBackend.ONNXRUNTIME,
        "its config.pbtxt names onnxruntime",
        FigureSource.FILE,
    ),
    AdviceRule(
        "configured-openvino",
        Every((_ONNX, Is("has_openvino"))),
        AdvisedBackend.OPENVINO,
        "its config.pbtxt names openvino",
        FigureSource.FILE,
    ),
    # The tree's branch without language models.
    AdviceRule(
        "onnx-latency",
        Every((_ONNX, _GPU, _LATENCY)),
        AdvisedBackend.ONNXRUNTIME_TENSORRT,
        "lowest latency is required: TensorRT compiles the ONNX file for this GPU, in FP16",
    ),
    AdviceRule("onnx-gpu", Every((_ONNX, _GPU)), AdvisedBackend.ONNXRUNTIME, "runs ONNX on GPUs without conversion"),
    AdviceRule(
        "onnx-intel",
        Every((_ONNX, Is("is_intel"))),
        AdvisedBackend.OPENVINO,
        "reads ONNX and is optimized for Intel's processors",
    ),
    AdviceRule(
        "onnx-cpu",
        _ONNX,
        AdvisedBackend.ONNXRUNTIME,
        "runs ONNX without conversion on any CPU",
    ),
    AdviceRule("ir", _IR, AdvisedBackend.OPENVINO, "the only backend for OpenVINO IR", FigureSource.FILE),
    AdviceRule(
        "torch",
        FormIn(TORCH_FORMS),
        AdvisedBackend.PYTORCH,
        "the only backend for TorchScript and torch.export",
        FigureSource.FILE,
    ),
    AdviceRule(
        "trees", FormIn((ModelForm.TREES,)), AdvisedBackend.FIL, "the only backend for tree models", FigureSource.FILE
    ),
    AdviceRule(
        "configured",
        Every((FormIn((ModelForm.OTHER,)), Is("has_backend"))),
        AdvisedBackend.CONFIGURED,
        "its config.pbtxt names the backend",
        FigureSource.FILE,
    ),
    AdviceRule("plan", _PLAN, AdvisedBackend.TENSORRT, "the only backend for TensorRT plans", FigureSource.FILE),
    AdviceRule(
        "python", FormIn((ModelForm.PYTHON,)), AdvisedBackend.PYTHON, "custom logic in Python", FigureSource.FILE
    ),
    AdviceRule(
        "ensemble",
        FormIn((ModelForm.ENSEMBLE,)),
        AdvisedBackend.ENSEMBLE,
        "its steps are models of the repository",
        FigureSource.FILE,
    ),
)

LAYOUT_RULES: tuple[AdviceRule, ...] = (
    AdviceRule(
        "keep-ensemble",
        Is("has_ensemble"),
        Layout.ENSEMBLE,
        "the repository has an ensemble: tensors pass between its steps inside the server",
        FigureSource.FILE,
    ),
    AdviceRule(
        "multi-modal-pipeline",
        Every((Is("is_pipeline"), CountFrom("languages", 1), CountFrom("tensors", 1))),
        Layout.ENSEMBLE,
        "image understanding before a language model is an ensemble, with a Python step that writes the prompt",
    ),
    AdviceRule(
        "pipeline",
        Every((Is("is_pipeline"), CountFrom("models", 2))),
        Layout.ENSEMBLE,
        "each request passes all models in a fixed order: one request instead of one for each step",
    ),
    AdviceRule(
        "several",
        CountFrom("models", 2),
        Layout.SEVERAL,
        "several models or frameworks: one server, one address, one set of metrics",
    ),
    AdviceRule("single", Every(()), Layout.SINGLE, "a single model needs no more"),
    AdviceRule(
        "bls",
        CountFrom("models", 2),
        Layout.BLS,
        "for paths that depend on the data, such as loops and conditions; a fixed order needs no code",
        excludes=True,
    ),
)


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """One row of the decision matrix: stars of 5, or words."""

    dimension: str
    vllm: str
    tensorrt_llm: str
    python: str


MATRIX: tuple[MatrixRow, ...] = (
    MatrixRow("models", "language models only", "language models, vision, speech, any", "language models, any"),
    MatrixRow("throughput", "5", "5", "4"),
    MatrixRow("latency", "5", "4", "3"),
    MatrixRow("difficulty of deployment", "2", "4", "3"),
    MatrixRow("several models", "no", "yes", "yes"),
    MatrixRow("several frameworks", "no", "yes", "yes"),
)
