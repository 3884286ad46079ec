"""What the requests of a benchmark contain, as its flags say."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from conch.base.errors import ConchError
from conch.measure.bench.prepared_request import ScriptSource

DEFAULT_DISTINCT = 16
DEFAULT_STRING_LENGTH = 128
DEFAULT_OUTPUT_TOKENS = 128


class InputError(ConchError):
    """Requests cannot be made as asked. The message names the input or file, and the flag that helps."""


class OpenAiRoute(StrEnum):
    """A path of the OpenAI API."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    EMBEDDINGS = "embeddings"


@dataclass(frozen=True, slots=True)
class Amount:
    """A number, or numbers evenly distributed in mean ± spread."""

    mean: int
    spread: int = 0

    def __str__(self) -> str:
        return f"{self.mean}±{self.spread}" if self.spread else str(self.mean)


@dataclass(frozen=True, slots=True)
class Cancellation:
    """Cancel this share of requests: after a time, or after a number of responses."""

    share: float  # 0 to 1
    after_ms: int | None = None
    after_responses: int | None = None


@dataclass(frozen=True, slots=True)
class InputSettings:
    """What is sent. The defaults suit every model whose shapes are fixed."""

    input_data: str = "random"
    """ "random", "zero", a folder with a file per input, perf_analyzer's JSON, JSONL of prompts, or a recording."""
    images: str | None = None
    """A folder of images."""
    normalization: str = "unit"
    """Of images for float inputs: "unit" (0 to 1), "signed" (-1 to 1), "imagenet", or "none" (0 to 255)."""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    string_length: int = DEFAULT_STRING_LENGTH
    batch_size: int = 1
    distinct: int | None = None
    """Different requests, sent in turn. None: 16 with tensors; generated prompts never repeat."""
    json_tensors: bool = False
    """Over HTTP, send and ask for tensors in JSON rather than as binary data."""
    priority: int = 0
    timeout_us: int = 0
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Other parameters of v2 requests, or other fields of requests to the OpenAI API."""

    route: OpenAiRoute | None = None
    streaming: bool = True
    prompt_tokens: Amount | None = None
    output_tokens: Amount | None = None
    prefix_tokens: int = 0
    prefixes: int = 1
    turns: Amount | None = None
    think_s: float = 0.0
    """Between the turns of a session."""
    tokenizer: str | None = None
    """A tokenizer.json, or a folder with one."""

    sequence_length: Amount | None = None
    cancel: Cancellation | None = None
    expect: str | None = None
    """A file, or "first" for the answers to the first requests."""
    tolerance: float = 1e-3
    """Relative, of floats in expected answers."""
    seed: int = 0

    @property
    def distinct_requests(self) -> int:
        """How many different requests are made before the run."""
        return DEFAULT_DISTINCT if self.distinct is None else self.distinct

    @property
    def prompts_never_repeat(self) -> bool:
        """Whether each request has a new prompt; expected answers need prompts that repeat."""
        return self.distinct is None and self.expect is None


@dataclass(frozen=True, slots=True)
class PreparedInputs:
    """The requests of a run, and what the report says of them."""

    source: ScriptSource
    description: str
    notes: tuple[str, ...] = ()
