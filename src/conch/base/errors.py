"""The errors of requests and models, independent of the transport.

    ConchError                      code: one of Triton's status codes
    ├── InvalidRequest              the client's mistake; names the field, its value and valid values
    │   ├── TooLarge                more bytes or work than one request may cost
    │   └── InvalidParameter        an invalid parameter of a generation
    ├── NotFound                    unknown model, version, region …
    ├── Unsupported                 not implemented by this server or the model
    ├── Unavailable                 temporary
    │   ├── QueueFull               refused on arrival
    │   ├── QueueTimeout            queued for longer than the queue policy allows
    │   ├── DeadlineMissed          the deadline has passed, or cannot be met
    │   ├── LimitExceeded           over an enforced limit of requests or tokens per second
    │   ├── Exhausted               out of memory
    │   ├── ModelLoading            the model is being loaded
    │   └── Unreachable             another server does not answer, such as that of a repository
    ├── Cancelled                   by the caller, or because it disconnected
    ├── BackendError                a model failed during the execution
    │   └── ProcessDied             the process of the model or engine exited
    ├── ConfigError                 an invalid model configuration, with file and line where known
    └── ModelLoadError              a model failed to load

The codes are those of `TRITONSERVER_Error_Code`; frontends map them to HTTP and gRPC in one table each.
"""

from enum import Enum
from typing import Final

_UNKNOWN_REQUEST: Final = "[request id: <id_unknown>] "


def request_prefix(request_id: str) -> str:
    """Return what Triton puts before many errors of a request; "" stands for a request without an id."""
    return f"[request id: {request_id}] " if request_id else _UNKNOWN_REQUEST


class Code(Enum):
    """Triton's error codes by their names in the C API and in `TritonError`."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7


class FailureReason(Enum):
    """Values of the `reason` label of `nv_inference_request_failure`."""

    REJECTED = "REJECTED"
    CANCELED = "CANCELED"
    BACKEND = "BACKEND"
    OTHER = "OTHER"


class ConchError(Exception):
    """Base of all expected failures. `str(error)` is the message for the client."""

    code: Code = Code.INTERNAL
    reason: FailureReason = FailureReason.OTHER
    # Whether the cause is the state of the server: `generate` then keeps its status, other errors of models are 400.
    by_server: bool = False
    # Where the core has refused the request of a frontend process: at the "look-up" of its model or its "admission".
    refused: str = ""

    def __init__(self, message: str, code: Code | None = None, *, retry_after_s: float | None = None) -> None:
        """Create an error. `retry_after_s`: the time until a retry is likely to succeed, if known."""
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s
        if code is not None:
            self.code = code


class InvalidRequest(ConchError):
    """The request is invalid; a retry would fail too."""

    code = Code.INVALID_ARG


class TooLarge(InvalidRequest):
    """The request needs more memory or time than one request may take: 413 over HTTP, RESOURCE_EXHAUSTED over gRPC."""


class InvalidParameter(InvalidRequest):
    """The sampling parameter `param` is invalid."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


class NotFound(ConchError):
    """The request names something that does not exist."""

    code = Code.NOT_FOUND


class Unsupported(ConchError):
    """The request needs a feature that this server or model does not have."""

    code = Code.UNSUPPORTED


class Unavailable(ConchError):
    """The request is valid but cannot be served now."""

    code = Code.UNAVAILABLE
    by_server = True


class Unreachable(Unavailable):
    """Another server does not answer, or reports an internal error. A refusal is not Unreachable."""


class QueueFull(Unavailable):
    """The model's queue has the maximum size of its policy."""

    reason = FailureReason.REJECTED

    def of_request(self, request_id: str) -> "QueueFull":
        """Return the error with the id of the refused request where the message says that it is unknown."""
        if not request_id:
            return self
        message = self.message.replace(_UNKNOWN_REQUEST, request_prefix(request_id), 1)
        return QueueFull(message, retry_after_s=self.retry_after_s)


class QueueTimeout(Unavailable):
    """The request waited in the queue for longer than its policy allows."""

    reason = FailureReason.REJECTED


class DeadlineMissed(Unavailable):
    """The deadline of the request has passed, or would pass before its end.

    `stage` is where that is known: `estimate` before it is queued, by an estimate of its end (503 over HTTP,
    UNAVAILABLE over gRPC: another replica may meet it, or DEADLINE_EXCEEDED without a time for a retry); `arrival`,
    `queue` or `execution`, where it has passed (504, DEADLINE_EXCEEDED).
    """

    reason = FailureReason.REJECTED

    def __init__(self, message: str, stage: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.stage = stage

    @property
    def passed(self) -> bool:
        """Whether the deadline has passed."""
        return self.stage != "estimate"


class LimitExceeded(Unavailable):
    """An enforced limit of requests or tokens per second: 429 over HTTP, RESOURCE_EXHAUSTED over gRPC."""

    reason = FailureReason.REJECTED

    def __init__(self, message: str, *, retry_after_s: float, quantity: str) -> None:
        """Create an error. `quantity` is "requests" or "tokens"."""
        super().__init__(message, retry_after_s=retry_after_s)
        self.quantity = quantity


class Exhausted(Unavailable):
    """The server has too little memory for the request: RESOURCE_EXHAUSTED over gRPC."""


class ModelLoading(Unavailable):
    """The model is being loaded, or the server reads its repository: a retry is likely to succeed later."""


class Cancelled(ConchError):
    """The caller cancelled the request or disconnected."""

    code = Code.CANCELLED
    by_server = True
    reason = FailureReason.CANCELED


class BackendError(ConchError):
    """A model raised, responded with an error or died during the execution. The model may choose the code."""

    reason = FailureReason.BACKEND


class ProcessDied(BackendError):
    """The process of a model or engine exited while it executed the request."""

    by_server = True


class ConfigError(ConchError):
    """A configuration that cannot be served."""

    code = Code.INVALID_ARG


class ModelLoadError(ConchError):
    """A model failed to load; the message has the cause."""


def drop_frames(error: BaseException | None) -> None:
    """Remove the tracebacks of an error that was reported, and of the errors that led to it.

    Their frames refer to the request, and some refer to the error: without this, only the garbage collector would find
    the memory of a body.
    """
    while error is not None and error.__traceback__ is not None:
        error.__traceback__ = None
        drop_frames(error.__cause__)
        error = error.__context__
