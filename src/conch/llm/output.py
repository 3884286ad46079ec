"""What a model's text consists of: what it says, what it thinks, and the tools it calls."""

from dataclasses import dataclass
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text that a model has thought, as opposed to said."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function that a model wants called; `arguments` is JSON."""

    id: str
    name: str
    arguments: str


# A string is what the model says.
Part: TypeAlias = str | Reasoning | ToolCall


class OutputParser(Protocol):
    """Takes one sequence's text as it comes and tells what it is."""

    def feed(self, text: str, last: bool) -> list[Part]:
        """Take more text; return what is known of it now. What may turn out to be something else is kept back."""


class PlainOutput:
    """All of it is what the model says."""

    def feed(self, text: str, last: bool) -> list[Part]:  # noqa: ARG002 - nothing is kept back
        """Return the text."""
        return [text] if text else []
