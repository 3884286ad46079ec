"""Every way a request or a model can fail, free of any transport.

    ConchError                      code: one of Triton's status codes
    ├── InvalidRequest              the client's mistake: name the field, what it was, what would be right
    ├── NotFound                    no such model, version, region …
    ├── Unsupported                 a thing this server does not do; named, never ignored
    ├── Unavailable                 right request, wrong moment
    │   ├── QueueFull               refused at the door
    │   ├── QueueTimeout            waited longer than its queue policy allows
    │   └── Exhausted               no memory for it
    ├── Cancelled                   the caller asked for, or caused, the end
    ├── BackendError                a model failed while executing
    │   └── ProcessDied             its process or engine ended with the request
    ├── ConfigError                 a model configuration that cannot be served, with file and line where known
    └── ModelLoadError              a model that could not be brought up

The codes are those of `TRITONSERVER_Error_Code`; frontends map them to HTTP and gRPC in one table each.
"""

from enum import Enum


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
    """Base of all expected failures. `str(error)` is the text a client reads."""

    code: Code = Code.INTERNAL
    reason: FailureReason = FailureReason.OTHER
    # The state of the server caused it: `generate`, where errors of models are 400, keeps its status.
    by_server: bool = False

    def __init__(self, message: str, code: Code | None = None, *, retry_after_s: float | None = None) -> None:
        """Make an error. `retry_after_s`: when the same request is likely to be served, where that can be said."""
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s
        if code is not None:
            self.code = code


class InvalidRequest(ConchError):
    """The request itself is wrong and would be wrong again."""

    code = Code.INVALID_ARG


class NotFound(ConchError):
    """The request names something that is not there."""

    code = Code.NOT_FOUND


class Unsupported(ConchError):
    """The request asks for something this server, or this model, does not do."""

    code = Code.UNSUPPORTED


class Unavailable(ConchError):
    """The request is fine but cannot be served now."""

    code = Code.UNAVAILABLE
    by_server = True


class QueueFull(Unavailable):
    """The model's queue holds as many requests as its policy allows."""

    reason = FailureReason.REJECTED


class QueueTimeout(Unavailable):
    """The request waited in the queue for longer than its policy allows."""

    reason = FailureReason.REJECTED


class Exhausted(Unavailable):
    """The server has no memory left for the request: RESOURCE_EXHAUSTED over gRPC."""


class Cancelled(ConchError):
    """The caller cancelled the request or went away."""

    code = Code.CANCELLED
    by_server = True
    reason = FailureReason.CANCELED


class BackendError(ConchError):
    """A model raised, answered with an error or died while executing. The code may be the model's own choice."""

    reason = FailureReason.BACKEND


class ProcessDied(BackendError):
    """The process of a model or engine ended while the request was being executed."""

    by_server = True


class ConfigError(ConchError):
    """A configuration that cannot be served."""

    code = Code.INVALID_ARG


class ModelLoadError(ConchError):
    """A model that could not be brought up; the message carries the cause."""
