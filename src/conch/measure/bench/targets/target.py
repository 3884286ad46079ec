"""What a benchmark measures: a model behind a protocol of a server."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any

from conch.base.errors import ConchError
from conch.measure.bench.load_plan import Endpoint


class TargetError(ConchError):
    """What answers at a URL cannot be measured as asked. The message says what answered and what would be right."""


class Protocol(StrEnum):
    """The value of `--protocol`."""

    HTTP = "http"
    """KServe v2 over HTTP."""
    GRPC = "grpc"
    """KServe v2, unary calls."""
    GRPC_STREAM = "grpc-stream"
    """KServe v2, ModelStreamInfer."""
    GENERATE = "generate"
    """Triton's generate and generate_stream."""
    OPENAI = "openai"
    """Chat, completions and embeddings."""


class ModelKind(Enum):
    """What a model computes, as far as it matters for what is sent."""

    TENSORS = "tensors"
    LANGUAGE = "language model"
    EMBEDDINGS = "embedding model"


@dataclass(frozen=True, slots=True)
class TensorMetadata:
    """An input or output, as the metadata has it: `shape` includes the batch dimension, -1 is variable."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False
    layout: str = ""  # "NCHW", "NHWC", or ""


@dataclass(frozen=True, slots=True)
class TargetModel:
    """A model. Of a model that only the OpenAI API has, inputs and outputs are empty."""

    name: str
    version: str = ""  # "": the server's choice
    kind: ModelKind = ModelKind.TENSORS
    platform: str = ""
    inputs: tuple[TensorMetadata, ...] = ()
    outputs: tuple[TensorMetadata, ...] = ()
    max_batch_size: int = 0  # 0: the first dimension is not a batch
    decoupled: bool = False  # any number of responses per request
    sequences: bool = False  # requests need a correlation id
    text_sequence_ids: bool = False  # correlation ids are strings
    context_length: int | None = None  # tokens of prompt and answer
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def batched(self) -> bool:
        """Whether the first dimension of each tensor is a batch."""
        return self.max_batch_size > 0


@dataclass(frozen=True, slots=True)
class BenchTarget:
    """A model of a server, and how to reach it.

    `base_path` stands before the paths of the protocol, such as "/prefix" of /prefix/v2, or "/v1" of the OpenAI API.
    `notes` are for the reader of the report.
    """

    url: str
    endpoint: Endpoint
    protocol: Protocol
    base_path: str
    server_name: str
    server_version: str
    model: TargetModel
    protocols: tuple[Protocol, ...] = ()  # that the server has at this URL
    metrics_url: str | None = None
    repository_index: bool = False  # whether the server has the model repository extension
    notes: tuple[str, ...] = ()

    @property
    def takes_prompts(self) -> bool:
        """Whether requests are prompts rather than tensors, so that answers have tokens."""
        return self.protocol is Protocol.OPENAI or self.model.kind is ModelKind.LANGUAGE
