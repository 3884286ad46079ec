# Compiled by mypyc in wheels.
"""Encode responses of the OpenAI API: completions, whole and in chunks, models and errors.

The constant parts of a stream's chunks are encoded once per stream.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from conch.base.errors import Code, ConchError, LimitExceeded, ModelLoading
from conch.domain.generation import Delta, FinishReason, InvalidParameter, PromptTokens, TokenLogprob, Usage
from conch.domain.llm.output import Part, ToolCall
from conch.protocols.openai.fields import InvalidField

# Constant, as in vLLM's server.
_PERMISSION: Final = {
    "object": "model_permission",
    "allow_create_engine": False,
    "allow_sampling": True,
    "allow_logprobs": True,
    "allow_search_indices": False,
    "allow_view": True,
    "allow_fine_tuning": False,
    "organization": "*",
    "group": None,
    "is_blocking": False,
}
END_OF_STREAM: Final = b"data: [DONE]\n\n"

_KINDS: Final = {
    Code.INVALID_ARG: "invalid_request_error",
    Code.UNSUPPORTED: "invalid_request_error",
    Code.NOT_FOUND: "invalid_request_error",
    Code.UNAVAILABLE: "server_overloaded",
    Code.CANCELLED: "cancelled",
}


def event(document: bytes) -> bytes:
    """Frame a document as one server-sent event."""
    return b"data: " + document + b"\n\n"


def error(cause: ConchError, *, code: str | None = None) -> bytes:
    """Encode an error: message, type, the invalid parameter and a code, if any."""
    kind = _KINDS.get(cause.code, "server_error")
    if isinstance(cause, LimitExceeded):
        kind, code = cause.quantity, "rate_limit_exceeded"
    elif isinstance(cause, ModelLoading):
        kind, code = "server_error", "model_loading"
    document = {
        "message": cause.message,
        "type": kind,
        "param": cause.param if isinstance(cause, InvalidField | InvalidParameter) else None,
        "code": code or ("model_not_found" if cause.code is Code.NOT_FOUND else None),
    }
    return orjson.dumps({"error": document})


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model in the list of models. `parent` is the model of a LoRA adapter; times are of the epoch."""

    name: str
    created: int
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None  # tokens of prompt and completion together


def models(entries: Sequence[ModelEntry], loading: Sequence[str] | None = None) -> bytes:
    """Encode the list of models. The field `loading`, an extension, is sent during loads and has their models."""
    document: dict[str, Any] = {"object": "list", "data": [_model(entry) for entry in entries]}
    if loading is not None:
        document["loading"] = list(loading)
    return orjson.dumps(document)


def model(entry: ModelEntry) -> bytes:
    """Encode one model."""
    return orjson.dumps(_model(entry))


def unloaded(name: str) -> bytes:
    """Encode the response to the unloading of a model."""
    return orjson.dumps({"status": "success", "model": name})


def usage_document(usage: Usage) -> dict[str, Any]:
    """Return the API's usage object."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyOptions:
    """Optional parts of a response. `tokens_as_ids`: log probabilities name tokens as `token_id:<id>`."""

    include_usage: bool = False  # of a stream: in a last, separate chunk
    continuous_usage: bool = False  # of a stream: in every chunk
    token_ids: bool = False
    tokens_as_ids: bool = False
    prompt_logprobs: bool = False


@dataclass(slots=True)
class ReplyChoice:
    """The generated parts of a choice.

    `text` and `logprobs` begin with those of the prompt if it is echoed; the first token of a prompt has an empty
    entry in `logprobs`.
    """

    text: str
    reasoning: str
    tool_calls: Sequence[ToolCall]
    finish_reason: str
    logprobs: Sequence[Sequence[TokenLogprob]]
    stop_reason: str | int | None = None
    token_ids: Sequence[int] = ()
    prompt: PromptTokens | None = None
    pieces: Sequence[str] = ()  # the texts of the prompt's tokens, if `logprobs` has them


class ChatReplies:
    """Encoder of one chat completion."""

    object_name = "chat.completion"

    def __init__(self, id: str, model: str, created: int, options: ReplyOptions) -> None:  # noqa: A002 - the API's name
        self.options = options
        head = {"id": id, "object": f"{self.object_name}.chunk", "created": created, "model": model}
        # The constant start and end of a chunk.
        self._prefix = b"data: " + orjson.dumps(head)[:-1] + b',"choices":['
        self._suffix = b'],"usage":null}\n\n' if options.include_usage else b"]}\n\n"
        self._head = {**head, "object": self.object_name}
        self._usage_prefix = self._prefix + b'],"usage":'

    def first(self, index: int, content: str, prompt: PromptTokens | None) -> bytes:
        """Return the first chunk of a choice. `content` is the echo."""
        choice = b'{"index":%d,"delta":{"role":"assistant","content":%s},"logprobs":null,"finish_reason":null}' % (
            index,
            orjson.dumps(content),
        )
        chunk = self._prefix + choice + self.tail(prompt, 0)
        if self.options.token_ids and prompt is not None:
            return chunk[:-3] + b',"prompt_token_ids":%s}\n\n' % orjson.dumps([*prompt.token_ids])
        return chunk

    def tail(self, prompt: PromptTokens | None, tokens: int) -> bytes:
        """Return the end of a chunk of a choice with `tokens` tokens so far."""
        if not self.options.continuous_usage:
            return self._suffix
        return _usage_tail(prompt, tokens)

    def chunk(
        self,
        delta: Delta,
        parts: Sequence[Part],
        finish_reason: str | None,
        number_of_calls: int,
        tail: bytes | None = None,
    ) -> bytes:
        """Return a chunk of a choice with `number_of_calls` tool calls so far."""
        if tail is not None:
            document = {
                "index": delta.index,
                "delta": _delta(parts, number_of_calls),
                "logprobs": self._logprobs(delta.logprobs) if delta.logprobs else None,
                "finish_reason": finish_reason,
                "stop_reason": delta.stop_reason,
            }
            if self.options.token_ids:
                document["token_ids"] = [*delta.token_ids]
            return self._prefix + orjson.dumps(document) + tail
        if len(parts) == 1 and isinstance(parts[0], str) and finish_reason is None and not delta.logprobs:
            content = orjson.dumps(parts[0])
            body = b'{"index":%d,"delta":{"content":%s},"logprobs":null,"finish_reason":null}' % (delta.index, content)
            return self._prefix + body + self._suffix
        document = {
            "index": delta.index,
            "delta": _delta(parts, number_of_calls),
            "logprobs": self._logprobs(delta.logprobs) if delta.logprobs else None,
            "finish_reason": finish_reason,
        }
        if delta.stop_reason is not None:
            document["stop_reason"] = delta.stop_reason
        return self._prefix + orjson.dumps(document) + self._suffix

    def usage(self, usage: Usage) -> bytes:
        """Return the last chunk, which has the usage."""
        return self._usage_prefix + orjson.dumps(usage_document(usage)) + b"}\n\n"

    def whole(self, choices: Iterable[ReplyChoice], usage: Usage) -> Iterator[bytes]:
        """Yield the response without streaming, in a piece for each choice."""
        yield orjson.dumps(self._head)[:-1]
        separator, prompt = b',"choices":[', None
        for index, choice in enumerate(choices):
            prompt = prompt or choice.prompt
            yield separator + orjson.dumps(self._choice(index, choice))
            separator = b","
        end = {"usage": usage_document(usage), **_prompt_fields(prompt, self.options)}
        yield b"]," + orjson.dumps(end)[1:]

    def _choice(self, index: int, choice: ReplyChoice) -> dict[str, Any]:
        return {
            "index": index,
            "message": _message(choice),
            "logprobs": self._logprobs(choice.logprobs) if choice.logprobs else None,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
            **({"token_ids": [*choice.token_ids]} if self.options.token_ids else {}),
        }

    def _logprobs(self, tokens: Sequence[Sequence[TokenLogprob]]) -> dict[str, Any]:
        return _chat_logprobs(_named(tokens, self.options))


class CompletionReplies:
    """Encoder of one text completion."""

    def __init__(self, id: str, model: str, created: int, options: ReplyOptions) -> None:  # noqa: A002 - the API's name
        self.options = options
        self._head = {"id": id, "object": "text_completion", "created": created, "model": model}
        self._prefix = b"data: " + orjson.dumps(self._head)[:-1] + b',"choices":['
        self._suffix = b'],"usage":null}\n\n' if options.include_usage else b"]}\n\n"
        self._usage_prefix = self._prefix + b'],"usage":'

    def chunk(self, index: int, delta: Delta, offset: int) -> bytes:
        """Return a chunk of a choice with `offset` characters so far."""
        text = orjson.dumps(delta.text)
        if delta.finish_reason is None and not delta.logprobs:
            body = b'{"index":%d,"text":%s,"logprobs":null,"finish_reason":null}' % (index, text)
            return self._prefix + body + self._suffix
        document = {
            "index": index,
            "text": delta.text,
            "logprobs": _completion_logprobs(delta.logprobs, offset) if delta.logprobs else None,
            "finish_reason": delta.finish_reason.value if delta.finish_reason is not None else None,
            "stop_reason": delta.stop_reason,
        }
        return self._prefix + orjson.dumps(document) + self._suffix

    def detailed(self, index: int, choice: ReplyChoice, offset: int, tokens: int, *, first: bool, last: bool) -> bytes:
        """Return a chunk of a choice with `tokens` tokens so far; `choice` has the new ones.

        The first chunk of a choice has the requested parts of the prompt.
        """
        document = self._choice(index, choice, offset, whole=first)
        document["finish_reason"] = choice.finish_reason if last else None
        tail = _usage_tail(choice.prompt, tokens) if self.options.continuous_usage else self._suffix
        return self._prefix + orjson.dumps(document) + tail

    def usage(self, usage: Usage) -> bytes:
        """Return the last chunk, which has the usage."""
        return self._usage_prefix + orjson.dumps(usage_document(usage)) + b"}\n\n"

    def _choice(self, index: int, choice: ReplyChoice, offset: int, *, whole: bool) -> dict[str, Any]:
        logprobs = _named(choice.logprobs, self.options)
        return {
            "index": index,
            "text": choice.text,
            "logprobs": _completion_logprobs(logprobs, offset, choice.pieces) if logprobs else None,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
            **({"token_ids": [*choice.token_ids]} if self.options.token_ids else {}),
            **(_prompt_fields(choice.prompt, self.options) if whole else {}),
        }

    def whole(self, choices: Iterable[ReplyChoice], usage: Usage) -> Iterator[bytes]:
        """Yield the response without streaming, in a piece for each choice."""
        yield orjson.dumps(self._head)[:-1]
        separator = b',"choices":['
        for index, choice in enumerate(choices):
            yield separator + orjson.dumps(self._choice(index, choice, 0, whole=True))
            separator = b","
        yield b'],"usage":' + orjson.dumps(usage_document(usage)) + b"}"


def finish_reason(reason: FinishReason, *, called: bool) -> str:
    """Return the API's finish reason."""
    return "tool_calls" if called and reason is FinishReason.STOP else reason.value


def _model(entry: ModelEntry) -> dict[str, Any]:
    return {
        "id": entry.name,
        "object": "model",
        "created": entry.created,
        "owned_by": "conch",
        "root": entry.root or entry.name,
        "parent": entry.parent,
        "max_model_len": entry.max_model_len,
        "permission": [{"id": f"modelperm-{entry.name}", "created": entry.created, **_PERMISSION}],
    }


def _delta(parts: Sequence[Part], number_of_calls: int) -> dict[str, Any]:
    document: dict[str, Any] = {}
    content = "".join(part for part in parts if isinstance(part, str))
    if content:
        document["content"] = content
    reasoning = "".join(part.text for part in parts if not isinstance(part, str | ToolCall))
    if reasoning:
        document["reasoning_content"] = reasoning
    calls = [part for part in parts if isinstance(part, ToolCall)]
    if calls:
        document["tool_calls"] = [
            {"index": number_of_calls + place, **_tool_call(call)} for place, call in enumerate(calls)
        ]
    return document


def _message(choice: ReplyChoice) -> Mapping[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
    if choice.reasoning:
        message["reasoning_content"] = choice.reasoning
    if choice.tool_calls:
        message["tool_calls"] = [_tool_call(call) for call in choice.tool_calls]
        message["content"] = choice.text or None
    return message


def _tool_call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _chat_logprobs(tokens: Sequence[Sequence[TokenLogprob]]) -> dict[str, Any]:
    content = [{**_token(token[0]), "top_logprobs": [_token(other) for other in token[1:]]} for token in tokens]
    return {"content": content, "refusal": None}


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


def _named(tokens: Sequence[Sequence[TokenLogprob]], options: ReplyOptions) -> Sequence[Sequence[TokenLogprob]]:
    """Return the tokens with their texts, or with their ids instead if the client requests it."""
    if not options.tokens_as_ids:
        return tokens
    return [
        [TokenLogprob(choice.token_id, f"token_id:{choice.token_id}", choice.logprob, choice.rank) for choice in token]
        for token in tokens
    ]


def _usage_tail(prompt: PromptTokens | None, tokens: int) -> bytes:
    usage = Usage(len(prompt.token_ids) if prompt is not None else 0, tokens)
    return b'],"usage":' + orjson.dumps(usage_document(usage)) + b"}\n\n"


def _prompt_fields(prompt: PromptTokens | None, options: ReplyOptions) -> dict[str, Any]:
    """Return the prompt's token ids and log probabilities in vLLM's form, if requested."""
    found: dict[str, Any] = {}
    if prompt is None:
        return found
    if options.token_ids:
        found["prompt_token_ids"] = [*prompt.token_ids]
    if options.prompt_logprobs:
        found["prompt_logprobs"] = [
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
    return found
