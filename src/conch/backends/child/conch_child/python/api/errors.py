"""`pb_utils.TritonError`, an error response, and `pb_utils.TritonModelException`."""

from __future__ import annotations


class TritonError:
    """An error in place of a response: a message and one of Triton's status codes."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7

    __slots__ = ("_code", "_message")

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        if not 0 <= int(code) <= TritonError.CANCELLED:
            raise TritonModelException("{!r} is not a valid error code; use one of TritonError's".format(code))
        self._message = str(message)
        self._code = int(code)

    def __repr__(self) -> str:
        return "TritonError({!r}, {})".format(self._message, self._code)

    def __str__(self) -> str:
        return self._message

    def message(self) -> str:
        """Return the message for the client."""
        return self._message

    def code(self) -> int:
        """Return the status code."""
        return self._code


class TritonModelException(Exception):
    """The exception that Triton's Python API raises, and that models may raise."""

    def message(self) -> str:
        """Return the message."""
        return str(self)
