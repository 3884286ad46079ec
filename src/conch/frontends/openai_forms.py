"""How deltas become what the OpenAI API sends: chunks of a stream, or choices in one piece."""

from collections.abc import Sequence
from typing import Protocol

from conch.generation import Delta, FinishReason, TokenLogprob, Usage
from conch.llm.output import OutputParser, Reasoning, ToolCall
from conch.protocol import openai_replies
from conch.protocol.openai_replies import ChatReplies, Choice, CompletionReplies


class ChoiceState:
    """What is remembered of one choice."""

    __slots__ = ("begun", "calls", "characters", "finish", "logprobs", "parser", "reasoning", "text")

    def __init__(self, parser: OutputParser) -> None:
        self.parser = parser
        self.begun = False  # whether its first chunk was sent
        self.characters = 0
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.calls: list[ToolCall] = []
        self.logprobs: list[Sequence[TokenLogprob]] = []
        self.finish: FinishReason | None = None


class Form(Protocol):
    """How deltas become chunks and choices: a chat or a text completion."""

    def chunks(self, state: ChoiceState, delta: Delta) -> bytes:
        """Return the chunks of a delta."""

    def take(self, state: ChoiceState, delta: Delta) -> None:
        """Remember a delta for an answer in one piece."""

    def choice(self, state: ChoiceState) -> Choice:
        """Return a choice in one piece."""

    def usage(self, usage: Usage) -> bytes:
        """Return the chunk of the usage."""

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        """Return the answer in one piece."""


class ChatForm:
    """The form of a chat completion."""

    def __init__(self, replies: ChatReplies) -> None:
        self._replies = replies
        self.usage = replies.usage
        self.whole = replies.whole

    def chunks(self, state: ChoiceState, delta: Delta) -> bytes:
        """Return the chunks of a delta, at the beginning with that of the role."""
        first = b"" if state.begun else self._replies.first(delta.index)
        state.begun = True
        last = delta.finish_reason is not None
        parts = state.parser.feed(delta.text, last)
        calls = len(state.calls)
        state.calls += [part for part in parts if isinstance(part, ToolCall)]
        finish = None
        if delta.finish_reason is not None:
            finish = openai_replies.finish_reason(delta.finish_reason, called=bool(state.calls))
        elif not parts and not delta.logprobs:
            return first
        return first + self._replies.chunk(delta, parts, finish, calls)

    def take(self, state: ChoiceState, delta: Delta) -> None:
        """Remember a delta."""
        for part in state.parser.feed(delta.text, delta.finish_reason is not None):
            if isinstance(part, str):
                state.text.append(part)
            elif isinstance(part, Reasoning):
                state.reasoning.append(part.text)
            else:
                state.calls.append(part)
        state.logprobs += delta.logprobs
        state.finish = delta.finish_reason or state.finish

    def choice(self, state: ChoiceState) -> Choice:
        """Return a choice in one piece."""
        finish = openai_replies.finish_reason(state.finish or FinishReason.STOP, called=bool(state.calls))
        reasoning = "".join(state.reasoning)
        return Choice("".join(state.text), reasoning, state.calls, finish, state.logprobs)


class CompletionForm:
    """The form of a text completion; `prefixes` are what stands before each choice's text (`echo`)."""

    def __init__(self, replies: CompletionReplies, prefixes: Sequence[str]) -> None:
        self._replies = replies
        self._prefixes = prefixes
        self._next = 0
        self.usage = replies.usage
        self.whole = replies.whole

    def chunks(self, state: ChoiceState, delta: Delta) -> bytes:
        """Return the chunk of a delta."""
        if not delta.text and delta.finish_reason is None:
            return b""
        offset = state.characters
        state.characters += len(delta.text)
        return self._replies.chunk(delta.index, delta, offset)

    def take(self, state: ChoiceState, delta: Delta) -> None:
        """Remember a delta."""
        state.text.append(delta.text)
        state.logprobs += delta.logprobs
        state.finish = delta.finish_reason or state.finish

    def choice(self, state: ChoiceState) -> Choice:
        """Return a choice in one piece."""
        prefix = self._prefixes[self._next]
        self._next += 1
        finish = (state.finish or FinishReason.STOP).value
        return Choice(prefix + "".join(state.text), "", (), finish, state.logprobs)
