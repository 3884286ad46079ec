"""The input and output of the load generator: where requests go, what is sent, one level of load, what comes back."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from enum import Enum, IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a benchmark asks the server what it is before it imports numpy
    import ssl

    import numpy as np
    from numpy.typing import NDArray


class ResponseKind(IntEnum):
    """How an answer is read."""

    UNARY = 0
    """One HTTP response, or one gRPC response."""
    OPENAI_STREAM = 1
    """Server-sent events of the OpenAI API: chat, completions; ends with [DONE]."""
    GENERATE_STREAM = 2
    """Server-sent events of Triton's generate_stream; ends with the response."""
    GRPC_STREAM = 3
    """Responses of ModelStreamInfer; ends with triton_final_response, or for other models with one response."""
    OPENAI_UNARY = 4
    """One HTTP response of the OpenAI API, whose `usage` is read."""


class Cancel(IntEnum):
    """When the client cancels a request."""

    NEVER = 0
    AFTER_TIME = 1
    """`cancel_after` milliseconds after it was sent."""
    AFTER_RESPONSES = 2
    """After `cancel_after` responses or content chunks."""


@dataclass(slots=True, eq=False)
class PreparedRequest:
    """One request, encoded.

    `head` is everything of an HTTP/1.1 head but the fields of the connection (Host, Authorization, Content-Length):
    request line and fields, each ended by CR LF. For gRPC it is the path of the method. `body` is the HTTP body or the
    gRPC message without its five-byte prefix. `index` identifies the request in the records.
    With `next_body`, `body` is one example: each time the request is sent with another one of equal length, which this
    function returned to no process of the run before.
    """

    index: int
    head: bytes
    body: bytes
    response: ResponseKind = ResponseKind.UNARY
    _: KW_ONLY
    expected: "ExpectedAnswer | None" = None
    cancel: Cancel = Cancel.NEVER
    cancel_after: int = 0
    input_tokens: int = -1
    next_body: Callable[[], bytes] | None = None

    def changed(self) -> "PreparedRequest":
        """Return the request with the next body."""
        assert self.next_body is not None
        return replace(self, body=self.next_body(), next_body=None)


@dataclass(slots=True, eq=False)
class Answer:
    """What came back, for scripts that continue a conversation and for checks of answers.

    `body` is the body of a unary answer, or the ModelInferResponses of a gRPC stream, one after the other. `text` joins
    the content of a stream.
    """

    status: int
    body: bytes
    text: str = ""
    output_tokens: int = -1


class ExpectedAnswer(ABC):
    """A check of complete answers. It runs in the generator's processes, so it must be quick."""

    @abstractmethod
    def difference(self, answer: Answer) -> str:
        """Return in words how the answer differs from the expected one, or "" if it does not."""


class AnswerCheck(ABC):
    """What answers of status 200 must look like. It runs in the generator's processes, for some of the answers."""

    @abstractmethod
    def problem(self, body: bytes) -> str:
        """Return in words why a body is not an answer of the model, or "" if it is one."""


class Script(ABC):
    """The requests of one virtual user, one after the other."""

    @abstractmethod
    def next(self, previous: Answer | None) -> PreparedRequest | None:
        """Return the next request; None ends the script, and the user starts another one.

        `previous` is the answer to the request before; None at the start, and where `needs_answers` is False.
        """

    @property
    def needs_answers(self) -> bool:
        """Whether `next` reads the previous answer, which costs time."""
        return False

    @property
    def think_s(self) -> float:
        """How long the user waits before the next request of this script, in seconds."""
        return 0.0


class ScriptSource(ABC):
    """Makes the scripts of virtual users. It is copied into each process of the generator by fork."""

    @abstractmethod
    def script(self, session: int) -> Script:
        """Return the script number `session`; numbers are unique in a run, over all processes."""

    @property
    def fixed(self) -> list[PreparedRequest] | None:
        """The requests that all users send in turn, if there are no scripts to follow: the fastest case."""
        return None


class FixedRequests(ScriptSource):
    """Requests that do not depend on user or answer, sent in turn."""

    def __init__(self, requests: list[PreparedRequest]) -> None:
        if not requests:
            raise ValueError("a load needs at least one request")
        self._requests = requests

    @property
    def fixed(self) -> list[PreparedRequest] | None:
        return self._requests

    def script(self, session: int) -> Script:
        return _InTurn(self._requests, session)


class _InTurn(Script):
    def __init__(self, requests: list[PreparedRequest], start: int) -> None:
        self._requests = requests
        self._next = start % len(requests)

    def next(self, previous: Answer | None) -> PreparedRequest | None:  # noqa: ARG002
        request = self._requests[self._next]
        self._next = (self._next + 1) % len(self._requests)
        return request


class Transport(Enum):
    """What runs on a connection."""

    HTTP1 = "http"
    GRPC = "grpc"


@dataclass(frozen=True, slots=True)
class Tls:
    """How to verify a server and how to authenticate to it. Paths are of PEM files."""

    ca_file: str | None = None  # None: the system's certificates
    certificate_file: str | None = None
    key_file: str | None = None
    verify: bool = True
    server_name: str | None = None  # None: the host

    def context(self, protocols: list[str]) -> "ssl.SSLContext":
        """Return a context that verifies as asked and offers `protocols`. Raises OSError on unreadable files."""
        import ssl  # takes time to import

        context = ssl.create_default_context(cafile=self.ca_file)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.certificate_file is not None:
            context.load_cert_chain(self.certificate_file, self.key_file)
        context.set_alpn_protocols(protocols)
        return context


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where requests go. `headers` (lower-case name, value) go with each; they may hold keys and are never logged."""

    host: str
    port: int
    transport: Transport
    tls: Tls | None = None
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def place(self) -> str:
        """`host:port`, for URLs, header fields and messages."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """`users` virtual users, each of which sends its next request `think_s` seconds after its answer."""

    users: int
    think_s: float = 0.0


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Requests at given times in seconds from the start, ascending, whether or not those before are answered.

    Latency counts from these times, so that a stalled server or client is not hidden (coordinated omission).
    `requests` are indexes into the fixed requests of the source, of the same length; None: in turn.
    `in_flight` bounds requests in flight; those beyond wait in the client, their latency running.
    """

    times_s: "NDArray[np.float64]"
    in_flight: int = 16_384
    requests: "NDArray[np.int64] | None" = None


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """One level of load on one endpoint."""

    endpoint: Endpoint
    source: ScriptSource
    pacing: ClosedLoop | OpenLoop
    timeout_s: float = 60.0  # of one request
    connect_timeout_s: float = 10.0
    connections: int | None = None  # None: as many as requests are in flight (HTTP), one in 100 of them (gRPC)
    requests: int | None = None  # stop after this number; None: until stopped
    seed: int = 0
    check: AnswerCheck | None = None  # of answers; None: any answer of status 200 is right
    has_tokens: bool = True  # whether answers are of a language model; else a stream has responses
    processes: int | None = None  # None: as many as the load needs, at most one for each core
    on_start: Callable[[int], None] | None = None  # gets when the load begins (ns of CLOCK_MONOTONIC), just before that
