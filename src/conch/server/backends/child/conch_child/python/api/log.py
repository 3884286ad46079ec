"""`pb_utils.Logger`: log lines of models in the server's log."""

from __future__ import annotations

import os
import sys
from enum import IntEnum

from ...ipc.wire import shortened
from .. import messages
from .arguments import CallSignature
from .errors import TritonModelException
from .session import current

_LOG = CallSignature(
    "log", "(message: str, level: c_python_backend_utils.Logger.LogLevel = <LogLevel.INFO: 0>) -> None"
)
_LOG_INFO, _LOG_WARN, _LOG_ERROR, _LOG_VERBOSE = (
    CallSignature(name, "(message: str) -> None") for name in ("log_info", "log_warn", "log_error", "log_verbose")
)


class Logger:
    """Sends log lines with the model's file and line to the server, if it logs that level."""

    class LogLevel(IntEnum):
        """Levels of `Logger.log`, numbered as in Triton."""

        INFO = 0
        WARNING = 1
        ERROR = 2
        VERBOSE = 3

    INFO = LogLevel.INFO
    WARNING = LogLevel.WARNING
    ERROR = LogLevel.ERROR
    VERBOSE = LogLevel.VERBOSE

    @staticmethod
    def log(message: str, level: LogLevel = LogLevel.INFO) -> None:
        """Log at a level: `Logger.INFO`, `.WARNING`, `.ERROR` or `.VERBOSE`. Raises TypeError for any other."""
        _log(_LEVELS[_LOG.instance("level", level, Logger.LogLevel)], message, _LOG)

    @staticmethod
    def log_info(message: str) -> None:
        """Log at level INFO."""
        _log(messages.INFO, message, _LOG_INFO)

    @staticmethod
    def log_warn(message: str) -> None:
        """Log at level WARNING."""
        _log(messages.WARNING, message, _LOG_WARN)

    @staticmethod
    def log_error(message: str) -> None:
        """Log at level ERROR."""
        _log(messages.ERROR, message, _LOG_ERROR)

    @staticmethod
    def log_verbose(message: str) -> None:
        """Log at level VERBOSE."""
        _log(messages.VERBOSE, message, _LOG_VERBOSE)


_LEVELS = {
    Logger.INFO: messages.INFO,
    Logger.WARNING: messages.WARNING,
    Logger.ERROR: messages.ERROR,
    Logger.VERBOSE: messages.VERBOSE,
}


def _log(level: int, message: str, signature: CallSignature) -> None:
    message = signature.text("message", message)
    caller = sys._getframe(2)
    file, line = os.path.basename(caller.f_code.co_filename), caller.f_lineno  # noqa: PTH119 - a plain string
    try:
        session = current()
    except TritonModelException:  # a process that the model started: its stderr is the server's log, too
        # One write, so that lines of several processes do not interleave.
        os.write(2, "{}:{}] {}\n".format(file, line, message).encode(errors="replace"))
        return
    if level >= session.log_level:
        session.channel.send((messages.LOG, level, file, line, shortened(message)))
