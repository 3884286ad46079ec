"""Facts that advice is based on: the models, the machine, the demand; each number with its source."""

from argparse import ArgumentTypeError
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from conch.base.command_line.flag_values import value_kind
from conch.base.command_line.flags import flag_field
from conch.base.command_line.option_types import count, slo
from conch.base.errors import ConchError
from conch.domain.files.signature import TensorInfo
from conch.measure.advise.checkpoint import Checkpoint

GIB = 1 << 30


class FigureSource(StrEnum):
    """Where a number comes from."""

    MEASURED = "measured here"
    RULE = "rule of thumb"
    FILE = "from the file"
    STATED = "stated"


class ModelForm(StrEnum):
    """The form of a model."""

    CHECKPOINT = "checkpoint"
    GGUF = "GGUF"
    ONNX = "ONNX"
    IR = "OpenVINO IR"
    TORCH = "TorchScript"
    TORCH_EXPORT = "torch.export"
    PLAN = "TensorRT plan"
    PYTHON = "Python code"
    TREES = "tree model"
    IR_LANGUAGE = "language model in OpenVINO IR"
    ENSEMBLE = "ensemble"
    OTHER = "other"


# What keeps the configuration that it has.
CONFIGURED_FORMS = frozenset({ModelForm.ENSEMBLE, ModelForm.TREES, ModelForm.OTHER})
TORCH_FORMS = (ModelForm.TORCH, ModelForm.TORCH_EXPORT)
LANGUAGE_FORMS = frozenset({ModelForm.CHECKPOINT, ModelForm.GGUF, ModelForm.IR_LANGUAGE})


class Failure(ConchError):
    """There is no advice: a file cannot be read, a target is impossible, or nothing fits. The text says why."""


def size_text(size: float) -> str:
    """Return a size in bytes as KiB, from 0.1 MiB as MiB, or from 1 GiB as GiB."""
    if size < 0.1 * (1 << 20):
        return f"{size / 1024:.1f} KiB"
    return f"{size / (1 << 20):.1f} MiB" if size < GIB else f"{size / GIB:.1f} GiB"


@dataclass(frozen=True, slots=True)
class AdvisedFigure:
    """One number of the report, with its source and, for a calculated one, its calculation."""

    name: str
    text: str
    source: FigureSource
    detail: str = ""


@dataclass(frozen=True, slots=True)
class DeclaredTensors:
    """Inputs and outputs as a configuration declares them: without the batch dimension if there are batches."""

    max_batch_size: int
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """One model. Sizes are in bytes. `folder` is its folder in a repository, if it is in one."""

    name: str
    path: Path
    form: ModelForm
    size: int
    checkpoint: Checkpoint | None = None
    context: int = 0  # tokens
    kv_bytes_per_token: float = 0
    precision: str = ""
    inputs: tuple[TensorInfo, ...] = ()
    outputs: tuple[TensorInfo, ...] = ()
    declared: DeclaredTensors | None = None  # in its config.pbtxt
    folder: Path | None = None
    backend: str = ""  # of its configuration
    version: int = 1  # the newest

    @property
    def is_language(self) -> bool:
        """Whether it generates text."""
        return self.form in LANGUAGE_FORMS

    @property
    def is_batchable(self) -> bool:
        """Whether the first dimension of all inputs and outputs is variable."""
        tensors = (*self.inputs, *self.outputs)
        return bool(tensors) and all(info.dims and info.dims[0] == -1 for info in tensors)


DATA_SHEET = "of the data sheet"


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """GPUs of one kind. Unknown speeds are 0."""

    count: int
    name: str
    memory: int  # bytes of one
    bandwidth: float = 0  # bytes per second
    flops: float = 0  # dense, 16 bits, per second
    has_fp8: bool = False
    speeds_from: str = DATA_SHEET


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """A machine. `bandwidth` of its memory in bytes per second, 0 if unknown."""

    cores: int
    memory: int
    gpus: GpuFacts | None = None
    is_intel: bool = False
    bandwidth: float = 0
    source: FigureSource = FigureSource.STATED


def _rate(text: str) -> float:
    try:
        rate = float(text.removesuffix("/s"))
    except ValueError:
        rate = 0.0
    if not 0 < rate < 1e9:
        raise ArgumentTypeError(f"'{text}' is not a rate: expected a form such as 20/s")
    return rate


_COUNT = value_kind("N", count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What the models must achieve, as flags say. Times of `slo` are in seconds; zeros are unknown."""

    # fmt: off
    slo: Mapping[str, float] = flag_field(
        {}, "", "ttft:500ms,itl:50ms,latency:100ms", value_kind("TARGETS", slo))
    rate: float = flag_field(0.0, "", "expected requests per second", value_kind("N/s", _rate), name="load")
    concurrency: int = flag_field(0, "", "concurrent requests", _COUNT)
    prompt_tokens: int = flag_field(0, "", "tokens of a prompt", _COUNT)
    output_tokens: int = flag_field(0, "", "tokens of an answer", _COUNT)
    prefers_latency: bool = flag_field(
        False, "", "prefer latency to simple deployment", value_kind(""), name="lowest-latency", bare=True)
    is_pipeline: bool = flag_field(
        False, "", "requests pass MODEL and each --also in this order; its ensemble is written", value_kind(""),
        name="pipeline", bare=True)
    # fmt: on

    @property
    def tokens(self) -> int:
        """Tokens of a sequence, 0 if unknown."""
        return self.prompt_tokens + self.output_tokens if self.prompt_tokens and self.output_tokens else 0

    @property
    def in_flight(self) -> int:
        """Concurrent requests: stated, or by Little's law the rate times the time that the SLO allows; at least 1."""
        return max(self.concurrency, self._by_rate(), 1)

    def _by_rate(self) -> int:
        allowed = self.slo.get("latency", 0)
        if not allowed and self.output_tokens and "itl" in self.slo:
            allowed = self.slo.get("ttft", 0) + self.output_tokens * self.slo["itl"]
        return -int(-self.rate * allowed // 1)
