# Compiled by mypyc in wheels.
"""Encode answers of Anthropic's Messages API: messages, their events, counts of tokens, models and errors."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from conch.base.errors import Code, ConchError
from conch.domain.generation import Delta, FinishReason, Usage
from conch.domain.llm.output import Arguments, Part, Reasoning, ToolCall
from conch.protocols.generation_form import EVENT_STREAM, JSON, ChoiceState, GenerationForm
from conch.protocols.http.message import header
from conch.protocols.openai.replies import ModelEntry

_PING: Final = b'event: ping\ndata: {"type":"ping"}\n\n'
_STOP: Final = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
_KINDS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def encode_error(cause: ConchError, status: int, request_id: str) -> bytes:
    """Encode an error; its type is that of the status."""
    document = {"type": _KINDS.get(status, "api_error"), "message": cause.message}
    return orjson.dumps({"type": "error", "error": document, "request_id": request_id})


def request_header(request_id: str) -> bytes:
    """Return the header line of an answer that names its request."""
    return header(b"request-id", request_id.encode())


def models(entries: Sequence[ModelEntry], loading: Sequence[str] | None = None) -> bytes:  # noqa: ARG001 - as OpenAI's
    """Encode the list of models, as one page."""
    data = [_model(entry) for entry in entries]
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return orjson.dumps({"data": data, "has_more": False, "first_id": first, "last_id": last})


def model(entry: ModelEntry) -> bytes:
    """Encode one model."""
    return orjson.dumps(_model(entry))


def _model(entry: ModelEntry) -> dict[str, Any]:
    return {
        "type": "model",
        "id": entry.name,
        "display_name": entry.name,
        "created_at": datetime.fromtimestamp(entry.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": entry.max_model_len,
        "max_tokens": entry.max_model_len,
    }


class MessageForm(GenerationForm):
    """The form of a message: blocks of text, thinking and calls of tools, in the order of the output.

    `max_tokens` and `stops` are the request's; an answer that ends earlier has filled the model's context. `request_id`
    is in a header and in errors.
    """

    def __init__(
        self, answer_id: str, request_id: str, model: str, max_tokens: int | None, stops: Sequence[str]
    ) -> None:
        line = request_header(request_id)
        super().__init__(JSON + line, EVENT_STREAM + line)
        self._id = answer_id
        self._request_id = request_id
        self._model = model
        self._max_tokens = max_tokens
        self._stops = frozenset(stops)
        self._begun = False
        self._blocks: list[dict[str, Any]] = []  # of an answer in one piece
        self._open = ""  # type of the open block
        self._index = 0  # of the open block or of the next
        self._calls = False

    def chunks(self, state: ChoiceState, delta: Delta) -> bytes:
        parts = state.parser.feed(delta.text, delta.finish_reason is not None)
        self._note(state, delta)
        if self._begun and len(parts) == 1 and self._open == "text":
            part = parts[0]
            if isinstance(part, str):
                return self._text(part)
        events = [] if self._begun else [self._start(state)]
        self._begun = True
        for part in parts:
            events += self._events(part)
        return b"".join(events)

    def _note(self, state: ChoiceState, delta: Delta) -> None:
        if delta.finish_reason is not None:
            state.finish, state.stop = delta.finish_reason, delta.stop_reason

    def _start(self, state: ChoiceState) -> bytes:
        tokens = len(state.prompt.token_ids) if state.prompt is not None else 0
        message = self._message([], None, None, Usage(tokens, 0))
        return _event("message_start", {"message": message}) + _PING

    def _text(self, text: str) -> bytes:
        return (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
            b'"delta":{"type":"text_delta","text":%s}}\n\n' % (self._index, orjson.dumps(text))
        )

    def _events(self, part: Part) -> list[bytes]:
        """Return the events of a part of the output."""
        if isinstance(part, Arguments):
            delta = self._delta({"type": "input_json_delta", "partial_json": part.text})
            return [delta, *self._close()] if part.last else [delta]
        if isinstance(part, ToolCall):
            if part.source is not None or _arguments(part) is not None:
                self._calls = True
                block = {"type": "tool_use", "id": part.id, "name": part.name, "input": {}}
                events = self._begin("tool_use", block)
                return events if part.source is not None else events + self._events(Arguments(part.arguments, True))
            part = part.arguments
        events = []
        if isinstance(part, Reasoning):
            if self._open != "thinking":
                events = self._begin("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            events.append(self._delta({"type": "thinking_delta", "thinking": part.text}))
        else:
            if self._open != "text":
                events = self._begin("text", {"type": "text", "text": ""})
            events.append(self._text(part))
        return events

    def _begin(self, kind: str, block: dict[str, Any]) -> list[bytes]:
        events = self._close()
        self._open = kind
        events.append(_event("content_block_start", {"index": self._index, "content_block": block}))
        return events

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", {"index": self._index, "delta": delta})

    def _close(self) -> list[bytes]:
        """Return the end of the open block, if any."""
        if not self._open:
            return []
        events = [_event("content_block_stop", {"index": self._index})]
        if self._open == "thinking":
            events.insert(0, self._delta({"type": "signature_delta", "signature": self._id}))
        self._open = ""
        self._index += 1
        return events

    def end(self, states: Sequence[ChoiceState], usage: Usage) -> bytes:
        reason, sequence = self._stop(states[0], usage)
        delta = {"stop_reason": reason, "stop_sequence": sequence, "stop_details": None}
        last = _event("message_delta", {"delta": delta, "usage": _usage(usage)})
        return b"".join([*self._close(), last, _STOP])

    def failure(self, error: ConchError) -> bytes:
        status = 503 if error.code is Code.UNAVAILABLE else 500
        return b"event: error\ndata: " + encode_error(error, status, self._request_id) + b"\n\n"

    def take(self, state: ChoiceState, delta: Delta) -> None:
        for part in state.parser.feed(delta.text, delta.finish_reason is not None):
            self._take_part(part)
        self._note(state, delta)

    def _take_part(self, part: Part) -> None:
        assert not isinstance(part, Arguments)  # which streams have
        if isinstance(part, ToolCall):
            arguments = _arguments(part)
            if arguments is not None:
                self._calls = True
                self._blocks.append({"type": "tool_use", "id": part.id, "name": part.name, "input": arguments})
                return
            part = part.arguments
        kind, text = ("thinking", part.text) if isinstance(part, Reasoning) else ("text", part)
        last = self._blocks[-1] if self._blocks else None
        if last is not None and last["type"] == kind:
            last[kind].append(text)
        else:
            signature = {"signature": self._id} if kind == "thinking" else {}
            self._blocks.append({"type": kind, kind: [text], **signature})

    def whole(self, states: Sequence[ChoiceState], usage: Usage) -> Iterator[bytes]:
        for block in self._blocks:
            kind = block["type"]
            if kind != "tool_use":
                block[kind] = "".join(block[kind])
        reason, sequence = self._stop(states[0], usage)
        yield orjson.dumps(self._message(self._blocks, reason, sequence, usage))

    def _message(
        self, content: list[dict[str, Any]], reason: str | None, sequence: str | None, usage: Usage
    ) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": sequence,
            "stop_details": None,
            "usage": _usage(usage),
        }

    def _stop(self, state: ChoiceState, usage: Usage) -> tuple[str, str | None]:
        """Return why the answer has ended, and the stop sequence that ended it."""
        if state.finish is FinishReason.LENGTH:
            whole = self._max_tokens is None or usage.completion_tokens < self._max_tokens
            return "model_context_window_exceeded" if whole else "max_tokens", None
        if self._calls:
            return "tool_use", None
        stop = state.stop
        if isinstance(stop, str) and stop in self._stops:
            return "stop_sequence", stop
        return "end_turn", None


def _arguments(call: ToolCall) -> dict[str, Any] | None:
    """Return the arguments of a call, None if the model has not completed them."""
    try:
        arguments = orjson.loads(call.arguments)
    except orjson.JSONDecodeError:
        return None
    return arguments if isinstance(arguments, dict) else None


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


def _event(name: str, fields: dict[str, Any]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), orjson.dumps({"type": name, **fields}))
