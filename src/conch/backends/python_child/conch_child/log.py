"""`pb_utils.Logger`: the model's lines in the server's log."""

from __future__ import annotations

import os
import sys

from . import messages
from .errors import TritonModelException
from .session import current


class Logger:
    """Log lines with the model's file and line before them, if the server logs that level."""

    INFO = messages.INFO
    WARNING = messages.WARNING
    ERROR = messages.ERROR
    VERBOSE = messages.VERBOSE

    @staticmethod
    def log(message: str, level: int = messages.INFO) -> None:
        """Log at a level: `Logger.INFO`, `.WARNING`, `.ERROR` or `.VERBOSE`."""
        _log(level, message)

    @staticmethod
    def log_info(message: str) -> None:
        """Log what may interest an operator."""
        _log(messages.INFO, message)

    @staticmethod
    def log_warn(message: str) -> None:
        """Log what should not be so."""
        _log(messages.WARNING, message)

    @staticmethod
    def log_error(message: str) -> None:
        """Log what went wrong."""
        _log(messages.ERROR, message)

    @staticmethod
    def log_verbose(message: str) -> None:
        """Log what only matters to somebody looking for something."""
        _log(messages.VERBOSE, message)


def _log(level: int, message: str) -> None:
    caller = sys._getframe(2)
    file, line = os.path.basename(caller.f_code.co_filename), caller.f_lineno  # noqa: PTH119 - a frame is no path
    try:
        session = current()
    except TritonModelException:  # a worker of the model's own: its stderr is the server's log, too
        # In one write, so that the lines of several workers do not run into each other.
        os.write(2, "{}:{}] {}\n".format(file, line, message).encode(errors="replace"))
        return
    if level >= session.log_level:
        session.channel.send((messages.LOG, int(level), file, line, str(message)))
