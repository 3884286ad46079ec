# Compiled by mypyc in wheels.
"""Formats deltas as chunks of a stream or as choices of one answer."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from conch.domain.generation import Delta, FinishReason, PromptTokens, TokenLogprob, Usage
from conch.domain.llm.output import OutputParser, Reasoning, ToolCall
from conch.protocols.openai import replies as openai_replies
from conch.protocols.openai.replies import ChatReplies, CompletionReplies, ReplyChoice


class ChoiceState:
    """The state of one choice."""

    __slots__ = (
        *("begun", "calls", "characters", "finish", "logprobs", "parser", "prompt", "reasoning", "stop", "text"),
        *("token_ids", "tokens"),
    )

    def __init__(self, parser: OutputParser) -> None:
        self.parser = parser
        self.begun = False  # whether its first chunk was sent
        self.characters = 0
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.calls: list[ToolCall] = []
        self.logprobs: list[Sequence[TokenLogprob]] = []
        self.finish: FinishReason | None = None
        self.stop: str | int | None = None
        self.prompt: PromptTokens | None = None
        self.tokens = 0
        self.token_ids: list[int] = []


class Form(Protocol):
    """How deltas become chunks and choices: a chat or a text completion."""

    def chunks(self, state: ChoiceState, delta: Delta) -> bytes:
        """Return the chunks of a delta."""

    def take(self, state: ChoiceState, delta: Delta) -> None:
        """Store a delta for an answer in one piece."""

    def choice(self, state: ChoiceState) -> ReplyChoice:
        """Return a choice in one piece."""

    def usage(self, usage: Usage) -> bytes:
        """Return the chunk of the usage."""

    def whole(self, choices: Iterable[ReplyChoice], usage: Usage) -> Iterator[bytes]:
        """Yield the answer without streaming, in pieces."""


class ChatForm:
    """The form of a chat completion; each choice's text begins with `prefix` (`echo`)."""

    def __init__(self, replies: ChatReplies, prefix: str = "") -> None:
        self._replies = replies
        self._prefix = prefix
        # Then chunks count tokens, and are sent even without text.
        self._detailed = replies.options.continuous_usage or replies.options.token_ids
        self.usage = replies.usage
        self.whole = replies.whole

    def chunks(self, state: ChoiceState, delta: Delta) -> bytes:
        """Return the chunks of a delta, at the beginning with that of the role."""
        first = b"" if state.begun else self._replies.first(delta.index, self._prefix, state.prompt)
        state.begun = True
        last = delta.finish_reason is not None
        parts = state.parser.feed(delta.text, last)
        calls = len(state.calls)
        state.calls += [part for part in parts if isinstance(part, ToolCall)]
        finish = None
        if delta.finish_reason is not None:
            finish = openai_replies.finish_reason(delta.finish_reason, called=bool(state.calls))
        if self._detailed:
            state.tokens += len(delta.token_ids)
            tail = self._replies.tail(state.prompt, state.tokens)
            return first + self._replies.chunk(delta, parts, finish, calls, tail)
        if finish is None and not parts and not delta.logprobs:
            return first
        return first + self._replies.chunk(delta, parts, finish, calls)

    def take(self, state: ChoiceState, delta: Delta) -> None:
        """Store a delta."""
        for part in state.parser.feed(delta.text, delta.finish_reason is not None):
            if isinstance(part, str):
                state.text.append(part)
            elif isinstance(part, Reasoning):
                state.reasoning.append(part.text)
            else:
                state.calls.append(part)
        _take_tokens(state, delta)

    def choice(self, state: ChoiceState) -> ReplyChoice:
        """Return a choice in one piece."""
        finish = openai_replies.finish_reason(state.finish or FinishReason.STOP, called=bool(state.calls))
        reasoning = "".join(state.reasoning)
        text = self._prefix + "".join(state.text)
        return ReplyChoice(
            text, reasoning, state.calls, finish, state.logprobs, state.stop, state.token_ids, state.prompt
        )


class CompletionForm:
    """The form of a text completion. With `echo` a choice begins with the prompt."""

    def __init__(self, replies: CompletionReplies, *, echo: bool = False) -> None:
        self._replies = replies
        self._echo = echo
        self._detailed = echo or replies.options.continuous_usage or replies.options.token_ids
        self.usage = replies.usage
        self.whole = replies.whole

    def chunks(self, state: ChoiceState, delta: Delta) -> bytes:
        """Return the chunk of a delta."""
        if self._detailed:
            return self._detailed_chunk(state, delta)
        if not delta.text and delta.finish_reason is None:
            return b""
        offset = state.characters
        state.characters += len(delta.text)
        return self._replies.chunk(delta.index, delta, offset)

    def take(self, state: ChoiceState, delta: Delta) -> None:
        """Store a delta."""
        state.text.append(delta.text)
        _take_tokens(state, delta)

    def choice(self, state: ChoiceState) -> ReplyChoice:
        """Return a choice in one piece."""
        finish = (state.finish or FinishReason.STOP).value
        choice = ReplyChoice(
            "".join(state.text), "", (), finish, state.logprobs, state.stop, state.token_ids, state.prompt
        )
        return self._echoed(choice) if self._echo else choice

    def _detailed_chunk(self, state: ChoiceState, delta: Delta) -> bytes:
        first, state.begun = not state.begun, True
        finish = delta.finish_reason.value if delta.finish_reason is not None else ""
        choice = ReplyChoice(
            delta.text, "", (), finish, delta.logprobs, delta.stop_reason, delta.token_ids, state.prompt
        )
        if first and self._echo:
            choice = self._echoed(choice)
        state.tokens += len(delta.token_ids)
        offset = state.characters
        state.characters += len(choice.text)
        return self._replies.detailed(delta.index, choice, offset, state.tokens, first=first, last=bool(finish))

    def _echoed(self, choice: ReplyChoice) -> ReplyChoice:
        """Put the prompt before a choice's text, tokens and log probabilities."""
        prompt = choice.prompt or PromptTokens(())
        if prompt.logprobs:
            choice.logprobs = [*prompt.logprobs, *choice.logprobs]
            choice.pieces = prompt.pieces
        choice.text = prompt.text + choice.text
        return choice


def _take_tokens(state: ChoiceState, delta: Delta) -> None:
    """Store what a delta has beside its text."""
    state.logprobs += delta.logprobs
    state.token_ids += delta.token_ids
    state.finish = delta.finish_reason or state.finish
    if delta.stop_reason is not None:
        state.stop = delta.stop_reason
