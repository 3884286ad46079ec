"""The screen of a program on a pseudo-terminal."""

import os
import select
import time


class Screen:
    """Unread output of a terminal."""

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self._shown = ""

    def until(self, text: str) -> str:
        """Read on to this text, and no further; return what was before it."""
        deadline = time.monotonic() + 60
        while text not in self._shown:
            ready, _, _ = select.select([self._terminal], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"no '{text}' in {self._shown!r}"
            self._shown += os.read(self._terminal, 1024).decode(errors="replace").replace("\r\n", "\n")
        before, _, self._shown = self._shown.partition(text)
        return before
