"""The server's log: Triton's line format over the standard `logging`.

    I1121 01:27:00.123456 4242 server.py:31] "Started HTTP service at 0.0.0.0:8000"
    2026-11-21T01:27:00Z I 4242 server.py:31] "Started HTTP service at 0.0.0.0:8000"

Letter, month and day, time in UTC, process, file and line, then the message quoted as in JSON: whatever a client has
put into it, it stays on one line. What needs several lines (a traceback, a table) follows indented.

A record may carry, in `extra`:

    instance   the model instance that speaks, put before the message
    source     `file:line` in a child process, instead of the place of the logging call
    block      text of several lines to follow the message
"""

import json
import logging
import sys
from contextlib import suppress
from datetime import UTC, datetime
from typing import TextIO

from conch.options import ServerOptions

# Everything that the code of models says: its standard output and its `pb_utils.Logger`.
MODEL_LOGGER = "conch.model"

_OFF = logging.CRITICAL + 1


class LineFormatter(logging.Formatter):
    """Records as Triton's lines; `iso8601` is the form of `--log-format=ISO8601`."""

    def __init__(self, *, iso8601: bool = False) -> None:
        super().__init__()
        self._iso8601 = iso8601

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the indented lines that belong to it."""
        moment = datetime.fromtimestamp(record.created, UTC)
        letter = _letter(record.levelno)
        head = f"{moment:%Y-%m-%dT%H:%M:%SZ} {letter}" if self._iso8601 else f"{letter}{moment:%m%d %H:%M:%S.%f}"
        source = getattr(record, "source", None) or f"{record.filename}:{record.lineno}"
        message = record.getMessage().rstrip("\n")
        instance = getattr(record, "instance", None)
        if instance:
            message = f"[{instance}] {message}"
        line = f"{head} {record.process} {source}] {json.dumps(message, ensure_ascii=False)}"
        return line + "".join(f"\n  {text}" for text in self._block(record).splitlines())

    def _block(self, record: logging.LogRecord) -> str:
        parts = [getattr(record, "block", None) or ""]
        if record.exc_info and record.exc_info[0] is not None:
            parts.append(self.formatException(record.exc_info))
        if record.stack_info:
            parts.append(record.stack_info)
        return "\n".join(part for part in parts if part)


class ServerLogHandler(logging.StreamHandler[TextIO]):
    """Writes the levels that are switched on; Triton switches each by itself.

    What cannot be written, the disk being full for example, is lost. The first time, stderr is told.
    """

    def __init__(self, options: ServerOptions) -> None:
        self._file = open(options.log_file, "a", encoding="utf-8") if options.log_file else None  # noqa: SIM115, PTH123
        super().__init__(self._file or sys.stderr)
        self._options = options
        self._failed = False
        self._failing = False
        self.setFormatter(LineFormatter(iso8601=options.log_format == "ISO8601"))
        self.addFilter(self._wanted)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        self._failed = False
        super().emit(record)
        self._failing = self._failed

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Say that the log cannot be written, once until it can be again: every line of it would be told otherwise."""
        error = sys.exception()
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        self._failed = True
        if not self._failing:
            with suppress(OSError):
                print(f"conch serve: cannot write the log, lines are lost: {error}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Close the log file, if there is one; stderr stays open."""
        super().close()
        if self._file is not None:
            self._file.close()

    def _wanted(self, record: logging.LogRecord) -> bool:
        options, level = self._options, record.levelno
        if level >= logging.ERROR:
            return options.log_error
        if level >= logging.WARNING:
            return options.log_warning
        if level >= logging.INFO:
            return options.log_info
        return level >= _verbose_level(options.log_verbose)


def configure(options: ServerOptions) -> None:
    """Send the log of this process where the options say. May be called again to change them.

    Raises OSError if the log file cannot be opened; then everything stays as it was.
    """
    handler = ServerLogHandler(options)
    root = logging.getLogger()
    for old in [one for one in root.handlers if isinstance(one, ServerLogHandler)]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    # The libraries' own chatter is not this server's log; their warnings are.
    root.setLevel(logging.WARNING)
    # The lowest level wanted stands at the logger, so that a line nobody wants costs one look-up.
    logging.getLogger("conch").setLevel(_lowest(options))


def _lowest(options: ServerOptions) -> int:
    if options.log_verbose:
        return _verbose_level(options.log_verbose)
    switches = (
        (options.log_info, logging.INFO),
        (options.log_warning, logging.WARNING),
        (options.log_error, logging.ERROR),
    )
    return next((level for enabled, level in switches if enabled), _OFF)


def _verbose_level(verbosity: int) -> int:
    """Return the least level that is logged: DEBUG at verbosity 1, one less for each step above."""
    return max(logging.DEBUG + 1 - verbosity, 1)


def _letter(level: int) -> str:
    if level >= logging.ERROR:
        return "E"
    return "W" if level >= logging.WARNING else "I"
