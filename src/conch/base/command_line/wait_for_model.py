"""Wait for a model that is loading, with progress on standard error."""

import sys
import time
from collections.abc import Callable
from typing import TypeVar

from conch.base.command_line.say import ERASE_LINE, in_place
from conch.base.durations import duration_text
from conch.base.errors import ModelLoading

_T = TypeVar("_T")

DEFAULT_WAIT_S = 600.0
WAIT_HELP = "wait for a model that is loading, at most this long (default: 10m; 0 does not wait)"
_ASK_EVERY_S = 1.0
# Where standard error is not a terminal.
_LINE_EVERY_S = 10.0


def wait_for_model(attempt: Callable[[], _T], program: str, limit_s: float) -> _T:
    """Return what `attempt` returns, which is repeated as long as it raises ModelLoading.

    Raises ModelLoading at the limit, and what `attempt` raises otherwise.
    """
    begun = time.monotonic()
    show = _Progress(program)
    try:
        while True:
            try:
                return attempt()
            except ModelLoading as error:
                left = begun + limit_s - time.monotonic()
                if left <= 0:
                    waited = f"waited {duration_text(limit_s)}, --wait waits longer" if limit_s else "--wait 1m waits"
                    raise ModelLoading(f"{error.message}; {waited}") from None
                show.waiting(error.message)
            time.sleep(min(_ASK_EVERY_S, left))
    finally:
        show.end()


class _Progress:
    """One line that changes on a terminal, a line from time to time elsewhere."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._in_place = sys.stderr.isatty()
        self._shown_at: float | None = None

    def waiting(self, state: str) -> None:
        now = time.monotonic()
        line = f"{self._program}: {state}; waiting"
        if self._in_place:
            print(in_place(line, sys.stderr), end="", file=sys.stderr, flush=True)
        elif self._shown_at is None or now - self._shown_at >= _LINE_EVERY_S:
            print(line, file=sys.stderr, flush=True)
        else:
            return
        self._shown_at = now

    def end(self) -> None:
        if self._in_place and self._shown_at is not None:
            print(ERASE_LINE, end="", file=sys.stderr, flush=True)
