"""Requests as bytes, ready to be sent, and the scripts that virtual users follow."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from enum import IntEnum


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
