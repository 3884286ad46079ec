# Compiled by mypyc in wheels.
"""The form of an answer of a generation API: deltas in, the events of a stream or one document out."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import orjson

from conch.base.errors import ConchError
from conch.domain.generation import Delta, FinishReason, PromptTokens, TokenLogprob, Usage
from conch.domain.llm.output import OutputParser, Reasoning, ToolCall
from conch.protocols.http.message import content_type, header

JSON: Final = content_type(b"application/json")
EVENT_STREAM: Final = content_type(b"text/event-stream; charset=utf-8") + header(b"Cache-Control", b"no-cache")


class ChoiceState:
    """What was generated of one choice."""

    __slots__ = (
        *("begun", "calls", "characters", "finish", "logprobs", "parser", "prompt", "reasoning", "stop", "text"),
        *("token_ids", "tokens"),
    )

    def __init__(self, parser: OutputParser) -> None:
        self.parser = parser
        self.begun = False  # whether its first chunk was sent
        self.characters = 0  # that were sent
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.calls: list[ToolCall] = []
        self.logprobs: list[Sequence[TokenLogprob]] = []
        self.finish: FinishReason | None = None
        self.stop: str | int | None = None
        self.prompt: PromptTokens | None = None
        self.tokens = 0
        self.token_ids: list[int] = []


class GenerationForm(ABC):
    """The form of one answer, which belongs to one call: it may keep state between the deltas.

    `headers` are header lines of an answer in one piece, `stream_headers` those of a stream.
    """

    def __init__(self, headers: bytes = JSON, stream_headers: bytes = EVENT_STREAM) -> None:
        self.headers = headers
        self.stream_headers = stream_headers

    @abstractmethod
    def chunks(self, state: ChoiceState, delta: Delta) -> bytes:
        """Return what a stream sends for a delta, which may be nothing. The first one has the prompt if requested."""

    @abstractmethod
    def end(self, states: Sequence[ChoiceState], usage: Usage) -> bytes:
        """Return the end of a stream."""

    @abstractmethod
    def failure(self, error: ConchError) -> bytes:
        """Return the end of a stream that fails after its status has been sent."""

    @abstractmethod
    def whole(self, states: Sequence[ChoiceState], usage: Usage) -> Iterator[bytes]:
        """Yield the answer without streaming, in pieces."""

    def take(self, state: ChoiceState, delta: Delta) -> None:
        """Store a delta for an answer in one piece."""
        for part in state.parser.feed(delta.text, delta.finish_reason is not None):
            if isinstance(part, str):
                state.text.append(part)
            elif isinstance(part, Reasoning):
                state.reasoning.append(part.text)
            elif isinstance(part, ToolCall):
                state.calls.append(part)
        state.logprobs += delta.logprobs
        state.token_ids += delta.token_ids
        state.finish = delta.finish_reason or state.finish
        if delta.stop_reason is not None:
            state.stop = delta.stop_reason


class CountForm(GenerationForm):
    """The form of a count of the tokens of a prompt; `fields` are those of the answer beside it.

    Calls that count are never streams, so that of the methods only `whole` is called.
    """

    def __init__(self, fields: Mapping[str, Any], headers: bytes = JSON) -> None:
        super().__init__(headers)
        self._fields = fields

    def chunks(self, state: ChoiceState, delta: Delta) -> bytes:
        raise NotImplementedError

    def end(self, states: Sequence[ChoiceState], usage: Usage) -> bytes:
        raise NotImplementedError

    def failure(self, error: ConchError) -> bytes:
        raise NotImplementedError

    def whole(self, states: Sequence[ChoiceState], usage: Usage) -> Iterator[bytes]:  # noqa: ARG002 - as the base
        yield orjson.dumps({**self._fields, "input_tokens": usage.prompt_tokens})
