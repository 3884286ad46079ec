"""What the OpenAI API answers with: completions whole and in chunks, models, errors.

A stream's chunks differ in little, so what they share is encoded once: a token costs the encoding of its text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from conch.errors import Code, ConchError
from conch.generation import Delta, FinishReason, InvalidParameter, TokenLogprob, Usage
from conch.llm.output import Part, ToolCall
from conch.protocol.openai_fields import InvalidField

END_OF_STREAM = b"data: [DONE]\n\n"

_KINDS = {
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
    """Encode an error as the API does: message, type, the parameter that is wrong, and a code where there is one."""
    document = {
        "message": cause.message,
        "type": _KINDS.get(cause.code, "server_error"),
        "param": cause.param if isinstance(cause, InvalidField | InvalidParameter) else None,
        "code": code or ("model_not_found" if cause.code is Code.NOT_FOUND else None),
    }
    return orjson.dumps({"error": document})


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model as clients see it. `parent` is the model that a LoRA adapter belongs to; times are of the epoch."""

    name: str
    created: int
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None  # tokens of prompt and completion together


def models(entries: Sequence[ModelEntry]) -> bytes:
    """Encode the list of models."""
    return orjson.dumps({"object": "list", "data": [_model(entry) for entry in entries]})


def model(entry: ModelEntry) -> bytes:
    """Encode one model."""
    return orjson.dumps(_model(entry))


def unloaded(name: str) -> bytes:
    """Encode the answer to unloading a model."""
    return orjson.dumps({"status": "success", "model": name})


def usage_document(usage: Usage) -> dict[str, Any]:
    """Return a usage as the API has it."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


@dataclass(slots=True)
class Choice:
    """One finished choice: everything that was generated for it."""

    text: str
    reasoning: str
    tool_calls: Sequence[ToolCall]
    finish_reason: str
    logprobs: Sequence[Sequence[TokenLogprob]]


class ChatReplies:
    """The forms of one chat completion."""

    object_name = "chat.completion"

    def __init__(self, id: str, model: str, created: int, *, include_usage: bool) -> None:  # noqa: A002 - the API's name
        head = {"id": id, "object": f"{self.object_name}.chunk", "created": created, "model": model}
        # Everything before and after what a chunk has of its own.
        self._prefix = b"data: " + orjson.dumps(head)[:-1] + b',"choices":['
        self._suffix = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"
        self._head = {**head, "object": self.object_name}
        self._usage_prefix = self._prefix + b'],"usage":'

    def first(self, index: int) -> bytes:
        """Return the chunk that begins a choice."""
        choice = b'{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}' % index
        return self._prefix + choice + self._suffix

    def chunk(self, delta: Delta, parts: Sequence[Part], finish_reason: str | None, number_of_calls: int) -> bytes:
        """Return a chunk; `number_of_calls` is how many tool calls the choice has had before."""
        if len(parts) == 1 and isinstance(parts[0], str) and finish_reason is None and not delta.logprobs:
            content = orjson.dumps(parts[0])
            body = b'{"index":%d,"delta":{"content":%s},"logprobs":null,"finish_reason":null}' % (delta.index, content)
            return self._prefix + body + self._suffix
        document = {
            "index": delta.index,
            "delta": _delta(parts, number_of_calls),
            "logprobs": _chat_logprobs(delta.logprobs) if delta.logprobs else None,
            "finish_reason": finish_reason,
        }
        if delta.stop_reason is not None:
            document["stop_reason"] = delta.stop_reason
        return self._prefix + orjson.dumps(document) + self._suffix

    def usage(self, usage: Usage) -> bytes:
        """Return the last chunk, that of the usage."""
        return self._usage_prefix + orjson.dumps(usage_document(usage)) + b"}\n\n"

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        """Return the answer of a call that does not stream."""
        listed = [
            {
                "index": index,
                "message": _message(choice),
                "logprobs": _chat_logprobs(choice.logprobs) if choice.logprobs else None,
                "finish_reason": choice.finish_reason,
            }
            for index, choice in enumerate(choices)
        ]
        return orjson.dumps({**self._head, "choices": listed, "usage": usage_document(usage)})


class CompletionReplies:
    """The forms of one text completion."""

    def __init__(self, id: str, model: str, created: int, *, include_usage: bool) -> None:  # noqa: A002 - the API's name
        self._head = {"id": id, "object": "text_completion", "created": created, "model": model}
        self._prefix = b"data: " + orjson.dumps(self._head)[:-1] + b',"choices":['
        self._suffix = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"
        self._usage_prefix = self._prefix + b'],"usage":'

    def chunk(self, index: int, delta: Delta, offset: int) -> bytes:
        """Return a chunk of a choice whose text has `offset` characters so far."""
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

    def usage(self, usage: Usage) -> bytes:
        """Return the last chunk, that of the usage."""
        return self._usage_prefix + orjson.dumps(usage_document(usage)) + b"}\n\n"

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        """Return the answer of a call that does not stream."""
        listed = [
            {
                "index": index,
                "text": choice.text,
                "logprobs": _completion_logprobs(choice.logprobs, 0) if choice.logprobs else None,
                "finish_reason": choice.finish_reason,
            }
            for index, choice in enumerate(choices)
        ]
        return orjson.dumps({**self._head, "choices": listed, "usage": usage_document(usage)})


def finish_reason(reason: FinishReason, *, called: bool) -> str:
    """Return the API's word for why a choice has ended."""
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


def _message(choice: Choice) -> Mapping[str, Any]:
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
    content = [{**_token(token[0]), "top_logprobs": [_token(each) for each in token[1:]]} for token in tokens]
    return {"content": content, "refusal": None}


def _token(token: TokenLogprob) -> dict[str, Any]:
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.text.encode())}


def _completion_logprobs(tokens: Sequence[Sequence[TokenLogprob]], offset: int) -> dict[str, Any]:
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token[0].text)
    return {
        "tokens": [token[0].text for token in tokens],
        "token_logprobs": [token[0].logprob for token in tokens],
        "top_logprobs": [{each.text: each.logprob for each in token} for token in tokens],
        "text_offset": offsets,
    }
