"""What a benchmark measures: a model behind a protocol of a server, and URLs of servers as users write them."""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any
from urllib.parse import urlsplit

from conch.base.errors import ConchError
from conch.base.http.credentials import check_no_credentials
from conch.measure.bench.generator import Endpoint, Tls, Transport

LOCAL_HTTP = "localhost:8000"
LOCAL_GRPC = "localhost:8001"
_SCHEMES = {"": (None, False), "http": ("http", False), "https": ("http", True)} | {
    name: ("grpc", secure) for name, secure in (("grpc", False), ("grpcs", True), ("grpc+tls", True))
}
_DEFAULT_PORTS = {"http": 80, "https": 443, "grpc": 8001, "grpcs": 443, "grpc+tls": 443, "": 8000}
_HOST_AND_PORT = re.compile(r"(\[[0-9a-fA-F:.%]+\]|[^:/\[\]\s]+):\d+(/.*)?")


class TargetError(ConchError):
    """What answers at a URL cannot be measured as asked. The message says what answered and what would be right."""


class NotHttp2(TargetError):
    """The server does not speak gRPC, or ends the connection."""


class RequestFailure(TargetError):
    """The answer is an error. `status` is that of gRPC or HTTP."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


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


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed URL. `wire` is "http", "grpc" or None if the URL does not say."""

    url: str
    host: str
    port: int
    wire: str | None
    secure: bool
    path: str  # without a slash at the end

    @property
    def place(self) -> str:
        """`host:port`, for messages."""
        return Endpoint(self.host, self.port, Transport.HTTP1).place

    def endpoint(self, transport: Transport, tls: Tls | None, headers: tuple[tuple[str, str], ...]) -> Endpoint:
        """Return where requests go."""
        return Endpoint(self.host, self.port, transport, (tls or Tls()) if self.secure else None, headers)


def is_address(text: str) -> bool:
    """Whether an argument is the address of a server rather than the name of a model."""
    if "://" in text or _HOST_AND_PORT.fullmatch(text) or text == "localhost":
        return True
    try:
        ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        return False
    return True


def parse_address(url: str) -> Address:
    """Parse `host:port`, `http://…`, `https://…`, `grpc://…` or `grpcs://…`, each with an optional path.

    Raises TargetError.
    """
    try:
        check_no_credentials(url)
    except ValueError as error:
        raise TargetError(str(error)) from None
    try:
        bare = "://" not in url
        if bare and url.count(":") > 1 and not url.startswith("["):
            url = f"[{url}]"  # an IPv6 address without a port
        parts = urlsplit(f"//{url}" if bare else url)
        scheme, port = parts.scheme.lower(), parts.port
    except ValueError as error:
        raise TargetError(f"'{url}' is not a valid URL: {error}") from None
    if scheme not in _SCHEMES:
        known = ", ".join(f"{name}://" for name in _SCHEMES if name)
        raise TargetError(f"'{url}' has the unknown scheme {scheme}://; use one of {known} or host:port")
    if not parts.hostname:
        raise TargetError(f"'{url}' has no host; use host:port, such as {LOCAL_HTTP}")
    wire, secure = _SCHEMES[scheme]
    return Address(url, parts.hostname, port or _DEFAULT_PORTS[scheme], wire, secure, parts.path.rstrip("/"))
