"""The last lines of this process's log, in memory."""

import logging
from collections import deque

from conch.base.logs import LineFormatter

_MAX_LINES = 2000
_MAX_CHARACTERS = 4096  # of a line


class LogTail(logging.Handler):
    """Keeps the last lines, without those of single requests, which the event log has."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._lines: deque[str] = deque(maxlen=_MAX_LINES)
        self.setFormatter(LineFormatter(iso8601=False))

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        if record.msg != "request":
            self._lines.append(self.format(record)[:_MAX_CHARACTERS])

    def text(self) -> str:
        """Return the lines."""
        return "".join(f"{line}\n" for line in list(self._lines))
