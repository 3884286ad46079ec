"""Parts of a model's output: text, reasoning and tool calls; reasoning is the text between <think> and </think>."""

from dataclasses import dataclass
from typing import Protocol, TypeAlias

_BEGIN, _END = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool by the model; `arguments` is JSON, of a `custom` tool any text.

    A call with a `source`, the model's text before the arguments, is followed by `Arguments`, which are the model's.
    """

    id: str
    name: str
    arguments: str
    custom: bool = False
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Arguments:
    """A piece of the last call's arguments; `last`: they are complete."""

    text: str
    last: bool


# A string is ordinary text.
Part: TypeAlias = str | Reasoning | ToolCall | Arguments


class OutputParser(Protocol):
    """Incremental parser of the text of one sequence. `complete`: the client does not want what may follow."""

    complete: bool

    def feed(self, text: str, last: bool) -> list[Part]:
        """Parse more text and return the complete parts. Text that may be part of a mark or call is held back."""


class PlainOutput:
    """Parser of output without reasoning and tool calls."""

    complete = False

    def feed(self, text: str, last: bool) -> list[Part]:  # noqa: ARG002 - nothing is held back
        """Return the text."""
        return [text] if text else []


def partial_mark(text: str, mark: str) -> int:
    """Return the length of the longest end of a text that is an incomplete start of a mark."""
    for size in range(min(len(text), len(mark) - 1), 0, -1):
        if text.endswith(mark[:size]):
            return size
    return 0


def has_reasoning(template: str) -> bool:
    """Whether the output of a model with this chat template may contain reasoning."""
    return _END in template


class ReasoningOutput:
    """Parser of output that may begin with reasoning; another parser gets the rest.

    `thinking` is whether the prompt ends within the reasoning, as some templates do. Reasoning is omitted unless it is
    `shown`.
    """

    complete = False

    def __init__(self, rest: OutputParser, *, thinking: bool, shown: bool = True) -> None:
        self._rest = rest
        self._shown = shown
        self._state = "thinking" if thinking else "before"
        self._held = ""

    def feed(self, text: str, last: bool) -> list[Part]:
        """Parse more text."""
        if self._state == "after":
            return self._rest.feed(text, last)
        self._held += text
        if self._state == "between":
            return self._skip_lines(last)
        if self._state == "before":
            start = self._held.lstrip()
            if _BEGIN.startswith(start) and not last:
                return []
            if not start.startswith(_BEGIN):
                return self._feed_rest(self._held, last)
            self._held = start.removeprefix(_BEGIN)
            self._state = "thinking"
        reasoning, end, rest = self._held.partition(_END)
        if end:
            self._state, self._held = "between", rest
            return [*self._reasoning(reasoning), *self._skip_lines(last)]
        keep = 0 if last else partial_mark(self._held, _END)
        reasoning, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return [*self._reasoning(reasoning), *(self._rest.feed("", True) if last else [])]

    def _reasoning(self, text: str) -> list[Part]:
        return [Reasoning(text)] if text and self._shown else []

    def _skip_lines(self, last: bool) -> list[Part]:
        """Skip the empty lines after the reasoning."""
        rest = self._held.lstrip("\n")
        return self._feed_rest(rest, last) if rest or last else []

    def _feed_rest(self, text: str, last: bool) -> list[Part]:
        self._state = "after"
        self._held = ""
        return self._rest.feed(text, last)
