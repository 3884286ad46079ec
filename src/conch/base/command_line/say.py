"""What commands tell their user beside their output, and lines as wide as the terminal."""

import os
import sys
from textwrap import TextWrapper
from typing import IO, TYPE_CHECKING

from conch.base.control_characters import printable_lines

if TYPE_CHECKING:
    from rich.console import Console

ERASE_LINE = "\r\x1b[K"
_CONTINUES = " …"
_MIN_COLUMNS = 20


def say(text: str) -> None:
    """Print text on stderr: names in it may be those of a server, or of files."""
    print(folded(printable_lines(text), sys.stderr), file=sys.stderr, flush=True)


def terminal_columns(stream: IO[str]) -> int:
    """Return the width of the terminal that a stream writes to, 0 if it does not know its width or writes elsewhere."""
    try:
        if not stream.isatty():
            return 0
        columns = int(os.environ.get("COLUMNS") or os.get_terminal_size(stream.fileno()).columns)
        return columns and max(columns, _MIN_COLUMNS)
    except (ValueError, OSError):
        return 0


def folded(text: str, stream: IO[str], indent: int = 2) -> str:
    """Return text whose lines break at words where they exceed the stream's terminal; other lines stay as they are.

    `indent` is that of continuations. Words are not broken, so that paths can be copied.
    """
    columns = terminal_columns(stream)
    if not columns:
        return text
    wrapper = TextWrapper(
        columns,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    )
    return "\n".join(wrapper.fill(line) if len(line) > columns else line for line in text.split("\n"))


def in_place(text: str, stream: IO[str]) -> str:
    """Return what shows text that continues in the line of a terminal that it erases, cut to fit into that line."""
    fits = max(terminal_columns(stream) - len(_CONTINUES) - 1, 0) or None
    return f"{ERASE_LINE}{text[:fits]}{_CONTINUES}"


def spinner_of(console: "Console") -> str:
    """Return the name of a spinner of rich whose characters a console has."""
    return "dots" if console.encoding.startswith("utf") else "line"
