"""`pb_utils.TritonError`, an error response, and `pb_utils.TritonModelException`."""

from __future__ import annotations

from enum import IntEnum

from .arguments import CallSignature


class TritonErrorCode(IntEnum):
    """Status codes of errors, numbered as in Triton's Python backend."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7


_SIGNATURE = CallSignature(
    "__init__",
    "c_python_backend_utils.TritonError(message: str, code: c_python_backend_utils.TritonError.__ErrorCode = "
    "<__ErrorCode.INTERNAL: 1>)",
)


class TritonError:
    """An error in place of a response: a message and one of Triton's status codes. Raises TypeError for other types."""

    UNKNOWN = TritonErrorCode.UNKNOWN
    INTERNAL = TritonErrorCode.INTERNAL
    NOT_FOUND = TritonErrorCode.NOT_FOUND
    INVALID_ARG = TritonErrorCode.INVALID_ARG
    UNAVAILABLE = TritonErrorCode.UNAVAILABLE
    UNSUPPORTED = TritonErrorCode.UNSUPPORTED
    ALREADY_EXISTS = TritonErrorCode.ALREADY_EXISTS
    CANCELLED = TritonErrorCode.CANCELLED

    __slots__ = ("_code", "_message")

    def __init__(self, message: str, code: TritonErrorCode = TritonErrorCode.INTERNAL) -> None:
        self._message = _SIGNATURE.text("message", message)
        self._code: TritonErrorCode = _SIGNATURE.instance("code", code, TritonErrorCode)

    def __repr__(self) -> str:
        return "TritonError({!r}, {})".format(self._message, self._code.name)

    def __str__(self) -> str:
        return self._message

    def message(self) -> str:
        """Return the message for the client."""
        return self._message

    def code(self) -> TritonErrorCode:
        """Return the status code."""
        return self._code


class TritonModelException(Exception):
    """The exception that Triton's Python API raises, and that models may raise."""

    def message(self) -> str:
        """Return the message."""
        return str(self)
