# Compiled by mypyc in wheels.
"""The answers of completions: deltas in, chunks of a stream or the choices of one answer out.

The constant parts of a stream's chunks are encoded once per stream.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from conch.base.errors import ConchError
from conch.domain.generation import Delta, FinishReason, PromptTokens, TokenLogprob, Usage
from conch.domain.llm.output import Arguments, Part, Reasoning, ToolCall
from conch.protocols.generation_form import ChoiceState, GenerationForm
from conch.protocols.openai import replies as openai_replies
from conch.protocols.openai.replies import END_OF_STREAM


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyOptions:
    """Optional parts of a response. `tokens_as_ids`: log probabilities name tokens as `token_id:<id>`."""

    include_usage: bool = False  # of a stream: in a last, separate chunk
    continuous_usage: bool = False  # of a stream: in every chunk
    token_ids: bool = False
    tokens_as_ids: bool = False
    prompt_logprobs: bool = False


class Form(GenerationForm):
    """The form of one answer of the OpenAI API; `id` is the answer's, `created` seconds of the epoch."""

    def __init__(
        self,
        id: str,  # noqa: A002 - the API's name
        model: str,
        created: int,
        options: ReplyOptions,
        kind: str,
        chunk_kind: str,
    ) -> None:
        super().__init__()
        self.options = options
        head = {"id": id, "object": chunk_kind, "created": created, "model": model}
        self._prefix = b"data: " + orjson.dumps(head)[:-1] + b',"choices":['
        self._suffix = b'],"usage":null}\n\n' if options.include_usage else b"]}\n\n"
        self._head = orjson.dumps({**head, "object": kind})[:-1]
        # Whether every delta has a chunk, which may count tokens or have their ids.
        self._detailed = options.continuous_usage or options.token_ids

    def end(self, states: Sequence[ChoiceState], usage: Usage) -> bytes:  # noqa: ARG002 - for other forms
        """Return the last chunk, which has the usage if it is requested, and the mark of the end."""
        if not self.options.include_usage:
            return END_OF_STREAM
        return self._prefix + b'],"usage":' + orjson.dumps(_usage(usage)) + b"}\n\n" + END_OF_STREAM

    def failure(self, error: ConchError) -> bytes:
        """Return an error as the last event."""
        return openai_replies.event(openai_replies.error(error)) + END_OF_STREAM

    def whole(self, states: Sequence[ChoiceState], usage: Usage) -> Iterator[bytes]:
        """Yield the answer without streaming, in a piece for each choice."""
        yield self._head
        separator = b',"choices":['
        for index, state in enumerate(states):
            yield separator + orjson.dumps(self._choice(index, state))
            separator = b","
        yield b"]," + orjson.dumps({"usage": _usage(usage), **self._fields_of_all(states)})[1:]

    @abstractmethod
    def _choice(self, index: int, state: ChoiceState) -> dict[str, Any]:
        """Return a choice of an answer in one piece."""

    def _fields_of_all(self, states: Sequence[ChoiceState]) -> dict[str, Any]:  # noqa: ARG002 - for overrides
        """Return the fields of an answer in one piece that all choices share."""
        return {}

    def _tail(self, state: ChoiceState) -> bytes:
        """Return the end of a chunk."""
        if not self.options.continuous_usage:
            return self._suffix
        usage = Usage(len(state.prompt.token_ids) if state.prompt is not None else 0, state.tokens)
        return b'],"usage":' + orjson.dumps(_usage(usage)) + b"}\n\n"

    def _named(self, tokens: Sequence[Sequence[TokenLogprob]]) -> Sequence[Sequence[TokenLogprob]]:
        """Return the tokens with their texts, or with their ids instead if the client requests it."""
        if not self.options.tokens_as_ids:
            return tokens
        return [
            [TokenLogprob(token.token_id, f"token_id:{token.token_id}", token.logprob, token.rank) for token in choices]
            for choices in tokens
        ]

    def _prompt_fields(self, prompt: PromptTokens | None) -> dict[str, Any]:
        """Return the prompt's token ids and log probabilities in vLLM's form, if requested."""
        fields: dict[str, Any] = {}
        if prompt is None:
            return fields
        if self.options.token_ids:
            fields["prompt_token_ids"] = [*prompt.token_ids]
        if self.options.prompt_logprobs:
            fields["prompt_logprobs"] = [
                {
                    str(alternative.token_id): {
                        "logprob": alternative.logprob,
                        "rank": alternative.rank or None,
                        "decoded_token": alternative.text,
                    }
                    for alternative in token
                }
                or None
                for token in prompt.logprobs
            ]
        return fields


class ChatForm(Form):
    """The form of a chat completion; each choice's text begins with `echo`."""

    def __init__(self, id: str, model: str, created: int, options: ReplyOptions, echo: str = "") -> None:  # noqa: A002
        super().__init__(id, model, created, options, "chat.completion", "chat.completion.chunk")
        self._echo = echo

    def chunks(self, state: ChoiceState, delta: Delta) -> bytes:
        """Return the chunks of a delta, at the beginning with that of the role."""
        first = b"" if state.begun else self._first(delta.index, state)
        state.begun = True
        parts = state.parser.feed(delta.text, delta.finish_reason is not None)
        calls = len(state.calls)
        state.calls += [part for part in parts if isinstance(part, ToolCall)]
        if not (self._detailed or delta.finish_reason is not None or delta.logprobs):
            if not parts:
                return first
            part = parts[0]
            if len(parts) == 1 and not isinstance(part, Reasoning | ToolCall):
                if isinstance(part, str):
                    content = b'"content":' + orjson.dumps(part)
                else:
                    text = orjson.dumps(part.text)
                    content = b'"tool_calls":[{"index":%d,"function":{"arguments":%s}}]' % (calls - 1, text)
                body = b'{"index":%d,"delta":{%s},"logprobs":null,"finish_reason":null}' % (delta.index, content)
                return first + self._prefix + body + self._suffix
        document = {
            "index": delta.index,
            "delta": _delta(parts, calls),
            "logprobs": self._logprobs(delta.logprobs),
            "finish_reason": None if delta.finish_reason is None else _finish_reason(delta.finish_reason, state),
        }
        if self._detailed or delta.stop_reason is not None:
            document["stop_reason"] = delta.stop_reason
        if self.options.token_ids:
            document["token_ids"] = [*delta.token_ids]
        state.tokens += len(delta.token_ids)
        return first + self._prefix + orjson.dumps(document) + self._tail(state)

    def _first(self, index: int, state: ChoiceState) -> bytes:
        """Return the first chunk of a choice."""
        choice = b'{"index":%d,"delta":{"role":"assistant","content":%s},"logprobs":null,"finish_reason":null}' % (
            index,
            orjson.dumps(self._echo),
        )
        chunk = self._prefix + choice + self._tail(state)
        if self.options.token_ids and state.prompt is not None:
            return chunk[:-3] + b',"prompt_token_ids":%s}\n\n' % orjson.dumps([*state.prompt.token_ids])
        return chunk

    def _choice(self, index: int, state: ChoiceState) -> dict[str, Any]:
        return {
            "index": index,
            "message": self._message(state),
            "logprobs": self._logprobs(state.logprobs),
            "finish_reason": _finish_reason(state.finish or FinishReason.STOP, state),
            "stop_reason": state.stop,
            **({"token_ids": [*state.token_ids]} if self.options.token_ids else {}),
        }

    def _fields_of_all(self, states: Sequence[ChoiceState]) -> dict[str, Any]:
        return self._prompt_fields(next((state.prompt for state in states if state.prompt is not None), None))

    def _message(self, state: ChoiceState) -> dict[str, Any]:
        text = self._echo + "".join(state.text)
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if state.reasoning:
            message["reasoning_content"] = "".join(state.reasoning)
        if state.calls:
            message["tool_calls"] = [_tool_call(call) for call in state.calls]
            message["content"] = text or None
        return message

    def _logprobs(self, tokens: Sequence[Sequence[TokenLogprob]]) -> dict[str, Any] | None:
        if not tokens:
            return None
        content = [
            {**_token(token[0]), "top_logprobs": [_token(other) for other in token[1:]]}
            for token in self._named(tokens)
        ]
        return {"content": content, "refusal": None}


class CompletionForm(Form):
    """The form of a text completion. With `echo` a choice begins with the prompt."""

    def __init__(self, id: str, model: str, created: int, options: ReplyOptions, echo: bool = False) -> None:  # noqa: A002
        super().__init__(id, model, created, options, "text_completion", "text_completion")
        self._echo = echo
        self._detailed = self._detailed or echo

    def chunks(self, state: ChoiceState, delta: Delta) -> bytes:
        """Return the chunk of a delta, for the first one of a choice with the requested parts of the prompt."""
        finish = None if delta.finish_reason is None else delta.finish_reason.value
        if not self._detailed and finish is None:
            if not delta.text:
                return b""
            if not delta.logprobs:
                state.characters += len(delta.text)
                text = orjson.dumps(delta.text)
                body = b'{"index":%d,"text":%s,"logprobs":null,"finish_reason":null}' % (delta.index, text)
                return self._prefix + body + self._suffix
        first = self._detailed and not state.begun
        state.begun = True
        state.tokens += len(delta.token_ids)
        document = self._document(delta.index, state, delta, finish, whole=first)
        return self._prefix + orjson.dumps(document) + self._tail(state)

    def _choice(self, index: int, state: ChoiceState) -> dict[str, Any]:
        finish = (state.finish or FinishReason.STOP).value
        delta = Delta(index, "".join(state.text), state.token_ids, None, state.stop, state.logprobs)
        return self._document(index, state, delta, finish, whole=True)

    def _document(
        self, index: int, state: ChoiceState, delta: Delta, finish: str | None, *, whole: bool
    ) -> dict[str, Any]:
        """Return a choice with what `delta` has; `whole`: with the prompt, as far as it is requested."""
        text, logprobs = delta.text, delta.logprobs
        pieces: Sequence[str] = ()
        if whole and self._echo and state.prompt is not None:
            text = state.prompt.text + text
            if state.prompt.logprobs:
                logprobs, pieces = [*state.prompt.logprobs, *logprobs], state.prompt.pieces
        offset = state.characters
        state.characters += len(text)
        return {
            "index": index,
            "text": text,
            "logprobs": _completion_logprobs(self._named(logprobs), offset, pieces) if logprobs else None,
            "finish_reason": finish,
            "stop_reason": delta.stop_reason,
            **({"token_ids": [*delta.token_ids]} if self.options.token_ids else {}),
            **(self._prompt_fields(state.prompt) if whole else {}),
        }


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def _finish_reason(reason: FinishReason, state: ChoiceState) -> str:
    return "tool_calls" if state.calls and reason is FinishReason.STOP else reason.value


def _delta(parts: Sequence[Part], number_of_calls: int) -> dict[str, Any]:
    document: dict[str, Any] = {}
    content = "".join(part for part in parts if isinstance(part, str))
    if content:
        document["content"] = content
    reasoning = "".join(part.text for part in parts if isinstance(part, Reasoning))
    if reasoning:
        document["reasoning_content"] = reasoning
    calls: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, ToolCall):
            calls.append({"index": number_of_calls, **_tool_call(part)})
            number_of_calls += 1
        elif isinstance(part, Arguments):
            if not calls:
                calls.append({"index": number_of_calls - 1, "function": {"arguments": ""}})
            calls[-1]["function"]["arguments"] += part.text
    if calls:
        document["tool_calls"] = calls
    return document


def _tool_call(call: ToolCall) -> dict[str, Any]:
    if call.custom:
        return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": call.arguments}}
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _token(token: TokenLogprob) -> dict[str, Any]:
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.text.encode())}


def _completion_logprobs(
    tokens: Sequence[Sequence[TokenLogprob]], offset: int, pieces: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the log probabilities; `pieces` are the texts of the first tokens, whose entries may be empty."""
    offsets, texts = [], []
    for place, token in enumerate(tokens):
        text = token[0].text if token else pieces[place]
        offsets.append(offset)
        texts.append(text)
        offset += len(text)
    return {
        "tokens": texts,
        "token_logprobs": [token[0].logprob if token else None for token in tokens],
        "top_logprobs": [{choice.text: choice.logprob for choice in token} if token else None for token in tokens],
        "text_offset": offsets,
    }
