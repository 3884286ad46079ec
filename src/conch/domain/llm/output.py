"""Parts of a model's output: text, reasoning and tool calls."""

from dataclasses import dataclass
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a function by the model; `arguments` is JSON."""

    id: str
    name: str
    arguments: str


# A string is ordinary text.
Part: TypeAlias = str | Reasoning | ToolCall


class OutputParser(Protocol):
    """Incremental parser of the text of one sequence."""

    def feed(self, text: str, last: bool) -> list[Part]:
        """Parse more text and return the complete parts. Text that may be part of a mark or call is held back."""


class PlainOutput:
    """Parser of output without reasoning and tool calls."""

    def feed(self, text: str, last: bool) -> list[Part]:  # noqa: ARG002 - nothing is held back
        """Return the text."""
        return [text] if text else []


def partial_mark(text: str, mark: str) -> int:
    """Return the length of the longest end of a text that is an incomplete start of a mark."""
    for size in range(min(len(text), len(mark) - 1), 0, -1):
        if text.endswith(mark[:size]):
            return size
    return 0
