"""The server's log: Triton's line format over the standard `logging`.

    I1121 01:27:00.123456 4242 server.py:31] "Started HTTP service at 0.0.0.0:8000"
    2026-11-21T01:27:00Z I 4242 server.py:31] "Started HTTP service at 0.0.0.0:8000"

A line has the level's letter, month and day, time in UTC, process, file and line, then the message, quoted as in JSON,
so that text from clients cannot start a new line. Blocks of several lines (a traceback, a table) follow indented. With
`--log-format=json` a line is an object with the same parts and the record's fields. For `conch run`, whose readers are
persons, a line is the message after the command's name.

A record may have, in `extra`:

    instance   the model instance of the message, put before it
    source     `file:line` in a child process, instead of the place of the logging call
    block      text of several lines after the message
    fields     further JSON values by name
    structured JSON values by name, for --log-format=json instead of `block`
"""

import json
import logging
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TextIO, overload

from conch.base.control_characters import printable
from conch.base.errors import Code, ConchError, Unsupported

# For the output of models: stdout, stderr and `pb_utils.Logger`.
MODEL_LOGGER = "conch.model"

_OFF = logging.CRITICAL + 1
FORMATS = ("default", "ISO8601", "json")
PLAIN = "plain"  # a further format, of `conch run`
# Control characters for terminals and line breaks that JSON does not escape.
_CONTROLS = {
    code: f"\\u{code:04x}"
    for code in (*range(0x7F, 0xA0), 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}

_BLOCK_CONTROLS = _CONTROLS | {code: f"\\x{code:02x}" for code in range(0x20) if chr(code) != "\t"}


@dataclass(slots=True)
class LogSettings:
    """The log settings of Triton's protocol; `log_file` cannot be changed."""

    log_file: str = ""
    log_info: bool = True
    log_warning: bool = True
    log_error: bool = True
    log_verbose_level: int = 0
    log_format: str = "default"

    def document(self) -> dict[str, str | bool | int]:
        """Return the settings by their names in the protocol."""
        return {name: getattr(self, name) for name in self.__slots__}

    def update(self, changes: Mapping[str, str | bool | int]) -> None:
        """Change settings, also for this process's log; unknown names are ignored.

        Raises Unsupported for the file, and ConchError with UNAVAILABLE for an unknown format, as in Triton; then no
        setting is changed.
        """
        if "log_file" in changes:
            raise Unsupported("log file location can not be updated through network protocol")
        form = changes.get("log_format")
        if form is not None and form not in FORMATS:
            raise ConchError(f"invalid argument for --log_format, got: {str(form)[:40]}", Code.UNAVAILABLE)
        for name, value in changes.items():
            if name in self.__slots__:
                setattr(self, name, value)
        for handler in logging.getLogger().handlers:
            if isinstance(handler, ServerLogHandler) and handler.settings is self:
                _apply(handler)


MAX_MESSAGE_CHARACTERS = 65_536
_MAX_BLOCK_CHARACTERS = 2**20  # tables and tracebacks


class LineFormatter(logging.Formatter):
    """Formats records as Triton's lines; `iso8601` is for `--log-format=ISO8601`.

    `coloured`: whether the letters of warnings and errors have colours, for a terminal.
    """

    def __init__(self, *, iso8601: bool = False, coloured: bool = False) -> None:
        super().__init__()
        self._iso8601 = iso8601
        self._colours = _COLOURS if coloured else {}

    def format(self, record: logging.LogRecord) -> str:
        """Return the line and the indented lines of its block."""
        moment = datetime.fromtimestamp(record.created, UTC)
        letter = _letter(record.levelno)
        letter = self._colours.get(letter, letter)
        head = f"{moment:%Y-%m-%dT%H:%M:%SZ} {letter}" if self._iso8601 else f"{letter}{moment:%m%d %H:%M:%S.%f}"
        source = getattr(record, "source", None) or f"{record.filename}:{record.lineno}"
        message = _shortened(record.getMessage().rstrip("\n"))
        instance = getattr(record, "instance", None)
        if instance:
            message = f"[{instance}] {message}"
        line = f"{head} {record.process} {source}] {quoted(message)}"
        for name, value in (getattr(record, "fields", None) or {}).items():
            line += f" {name}={quoted(_shortened(value))}"
        return line + "".join(f"\n  {text.translate(_BLOCK_CONTROLS)}" for text in _block(record, self).splitlines())


class JsonFormatter(logging.Formatter):
    """Formats records as JSON objects, one per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        moment = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "time": f"{moment:%Y-%m-%dT%H:%M:%S.%fZ}",
            "level": _LEVEL_NAMES[_letter(record.levelno)] if record.levelno >= logging.INFO else "VERBOSE",
            "message": _shortened(record.getMessage().rstrip("\n")),
            "pid": record.process,
            "source": getattr(record, "source", None) or f"{record.filename}:{record.lineno}",
        }
        instance = getattr(record, "instance", None)
        if instance:
            line["instance"] = instance
        structured = getattr(record, "structured", None) or {}
        block = _block(record, self)
        if block and not structured:
            line["block"] = block
        line.update(structured)
        line.update({name: _shortened(value) for name, value in (getattr(record, "fields", None) or {}).items()})
        return json.dumps(line)


class PlainFormatter(logging.Formatter):
    """Formats records for a person: the message after `conch run`, further lines indented."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines."""
        message = _shortened(record.getMessage().rstrip("\n"))
        instance = getattr(record, "instance", None)
        lines = [f"[{instance}] {message}" if instance else message, _block(record, self)]
        return "conch run: " + "\n  ".join(printable(line) for text in lines for line in text.splitlines())


_COLOURS = {"E": "\x1b[1;31mE\x1b[0m", "W": "\x1b[1;33mW\x1b[0m"}
_LEVEL_NAMES = {"E": "ERROR", "W": "WARNING", "I": "INFO"}


def quoted(value: object) -> str:
    """Return a value as JSON with escaped control characters and line breaks."""
    text = json.dumps(value, ensure_ascii=False).translate(_CONTROLS)
    return text.encode("utf-8", "backslashreplace").decode()


def _formatter(form: str, *, coloured: bool) -> logging.Formatter:
    if form == PLAIN:
        return PlainFormatter()
    return JsonFormatter() if form == "json" else LineFormatter(iso8601=form == "ISO8601", coloured=coloured)


def _has_colours(stream: TextIO) -> bool:
    """Whether a stream gets colours: a terminal that has them, or by FORCE_COLOR; never with NO_COLOR."""
    forced = os.environ.get("FORCE_COLOR", "")
    if os.environ.get("NO_COLOR") or forced == "0":
        return False
    if forced:
        return True
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


def _block(record: logging.LogRecord, formatter: logging.Formatter) -> str:
    """Return the lines after the message: block, traceback and stack."""
    parts = [getattr(record, "block", None) or ""]
    if record.exc_info and record.exc_info[0] is not None:
        parts.append(formatter.formatException(record.exc_info))
    if record.stack_info:
        parts.append(record.stack_info)
    return _shortened("\n".join(part for part in parts if part), _MAX_BLOCK_CHARACTERS)


@overload
def _shortened(value: str, limit: int = ...) -> str: ...
@overload
def _shortened(value: object, limit: int = ...) -> object: ...
def _shortened(value: object, limit: int = MAX_MESSAGE_CHARACTERS) -> object:
    """Return a text without what exceeds the limit: clients and models choose parts of messages."""
    if not isinstance(value, str) or len(value) <= limit:
        return value
    return f"{value[:limit]}… ({len(value)} characters)"


class ServerLogHandler(logging.StreamHandler[TextIO]):
    """Writes the enabled levels, each of which has a separate switch, as in Triton.

    Lines that cannot be written, for example because the disk is full, are lost; the first failure is reported on
    stderr.
    """

    def __init__(self, settings: LogSettings) -> None:
        self._file = open(settings.log_file, "a", encoding="utf-8") if settings.log_file else None  # noqa: SIM115, PTH123
        super().__init__(self._file or sys.stderr)
        self.settings = settings
        self._failed = False
        self.failing = False
        self.coloured = self._file is None and _has_colours(sys.stderr)
        self.setFormatter(_formatter(settings.log_format, coloured=self.coloured))
        self.addFilter(self._is_enabled)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        self._failed = False
        super().emit(record)
        self.failing = self._failed

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Report on stderr that the log cannot be written, once until a write succeeds."""
        error = sys.exception()
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        self._failed = True
        if not self.failing:
            with suppress(OSError):
                print(f"conch serve: cannot write the log, lines are lost: {error}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Close the log file; stderr stays open."""
        super().close()
        if self._file is not None:
            self._file.close()

    def _is_enabled(self, record: logging.LogRecord) -> bool:
        settings, level = self.settings, record.levelno
        if level >= logging.ERROR:
            return settings.log_error
        if level >= logging.WARNING:
            return settings.log_warning
        if level >= logging.INFO:
            return settings.log_info
        return level >= _verbose_level(settings.log_verbose_level)


def configure(settings: LogSettings) -> None:
    """Configure the log of this process; may be called again with other settings, which `update` changes later.

    Raises OSError if the log file cannot be opened; then the configuration is unchanged.
    """
    handler = ServerLogHandler(settings)
    root = logging.getLogger()
    for old in [handler for handler in root.handlers if isinstance(handler, ServerLogHandler)]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    # Of libraries only warnings are logged.
    root.setLevel(logging.WARNING)
    _apply(handler)


def losing_lines() -> bool:
    """Whether the last line of this process's log could not be written."""
    return any(isinstance(handler, ServerLogHandler) and handler.failing for handler in logging.getLogger().handlers)


def _apply(handler: ServerLogHandler) -> None:
    handler.setFormatter(_formatter(handler.settings.log_format, coloured=handler.coloured))
    # Set at the logger, so that disabled levels cost only a look-up.
    logging.getLogger("conch").setLevel(_lowest(handler.settings))


def _lowest(settings: LogSettings) -> int:
    if settings.log_verbose_level:
        return _verbose_level(settings.log_verbose_level)
    switches = (
        (settings.log_info, logging.INFO),
        (settings.log_warning, logging.WARNING),
        (settings.log_error, logging.ERROR),
    )
    return next((level for enabled, level in switches if enabled), _OFF)


def _verbose_level(verbosity: int) -> int:
    """Return the minimum level: DEBUG at verbosity 1, one less for each step above."""
    return max(logging.DEBUG + 1 - verbosity, 1)


def _letter(level: int) -> str:
    if level >= logging.ERROR:
        return "E"
    return "W" if level >= logging.WARNING else "I"
