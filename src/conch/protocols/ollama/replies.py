# Compiled by mypyc in wheels.
"""Encode replies of Ollama's API: generations, as lines of JSON if streamed, and errors."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson

from conch.base.errors import ConchError
from conch.domain.generation import Delta, FinishReason, TokenLogprob, Usage
from conch.domain.llm.output import Part, Reasoning, ToolCall
from conch.domain.llm.tool_calls import arguments_object
from conch.protocols.generation_form import JSON, ChoiceState, GenerationForm
from conch.protocols.http.message import content_type

_LINES: Final = content_type(b"application/x-ndjson")


def error(cause: ConchError) -> bytes:
    """Encode an error."""
    return orjson.dumps({"error": cause.message})


def timestamp(now_ns: int) -> str:
    """Write a time, in ns of the epoch, as Ollama does."""
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now_ns // 10**9))}.{now_ns // 1000 % 10**6:06}Z"


def loaded(model: str, *, chat: bool) -> bytes:
    """Encode the reply to a request without a prompt, which loads a model."""
    return orjson.dumps({**_head(model), **_content(chat, "", "", ()), "done": True, "done_reason": "load"})


def embeddings(args: Mapping[str, Any], vectors: Sequence[npt.NDArray[np.float32]]) -> bytes:
    """Encode the reply of `/api/embed`."""
    document = {
        "model": args["model"],
        "embeddings": list(vectors),
        "total_duration": args["duration_ns"],
        "load_duration": 0,
        "prompt_eval_count": args["tokens"],
    }
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)


def embedding(_args: Mapping[str, Any], vectors: Sequence[npt.NDArray[np.float32]]) -> bytes:
    """Encode the reply of `/api/embeddings`."""
    return orjson.dumps({"embedding": vectors[0]}, option=orjson.OPT_SERIALIZE_NUMPY)


class OllamaForm(GenerationForm):
    """The form of a generation, for `/api/chat` or `/api/generate`. `received` is in ns of the monotonic clock."""

    def __init__(self, model: str, received: int, *, chat: bool) -> None:
        super().__init__(JSON, _LINES)
        self._model = model
        self._chat = chat
        self._received = received
        self._first = 0  # when the first token came, monotonic ns

    def chunks(self, state: ChoiceState, delta: Delta) -> bytes:
        """Return the line of a delta, if it has something to show."""
        self._first = self._first or time.monotonic_ns()
        parts = state.parser.feed(delta.text, delta.finish_reason is not None)
        state.finish = delta.finish_reason or state.finish
        if not parts and not delta.logprobs:
            return b""
        line = {**_head(self._model), **self._parts(parts), **_logprobs(delta.logprobs), "done": False}
        return orjson.dumps(line) + b"\n"

    def end(self, states: Sequence[ChoiceState], usage: Usage) -> bytes:
        """Return the last line, with the counts and times."""
        return (
            orjson.dumps({**_head(self._model), **_content(self._chat, "", "", ()), **self._end(states, usage)}) + b"\n"
        )

    def failure(self, error: ConchError) -> bytes:
        """Return an error as the last line."""
        return orjson.dumps({"error": error.message}) + b"\n"

    def take(self, state: ChoiceState, delta: Delta) -> None:
        """Store a delta."""
        self._first = self._first or time.monotonic_ns()
        super().take(state, delta)

    def whole(self, states: Sequence[ChoiceState], usage: Usage) -> Iterator[bytes]:
        """Yield the answer in one piece."""
        state = states[0]
        content = _content(self._chat, "".join(state.text), "".join(state.reasoning), state.calls)
        yield orjson.dumps({**_head(self._model), **content, **_logprobs(state.logprobs), **self._end(states, usage)})

    def _parts(self, parts: Sequence[Part]) -> dict[str, Any]:
        text = "".join([part for part in parts if isinstance(part, str)])
        reasoning = "".join([part.text for part in parts if isinstance(part, Reasoning)])
        return _content(self._chat, text, reasoning, [part for part in parts if isinstance(part, ToolCall)])

    def _end(self, states: Sequence[ChoiceState], usage: Usage) -> dict[str, Any]:
        """Return the fields of the end. The load is the time until the engine has scheduled the request."""
        now = time.monotonic_ns()
        first = self._first or now
        scheduled = min(max(usage.scheduled, self._received), first)
        reason = states[0].finish or FinishReason.STOP
        return {
            "done": True,
            "done_reason": reason.value,
            "total_duration": now - self._received,
            "load_duration": scheduled - self._received,
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": first - scheduled,
            "eval_count": usage.completion_tokens,
            "eval_duration": now - first,
        }


def _head(model: str) -> dict[str, Any]:
    return {"model": model, "created_at": timestamp(time.time_ns())}


def _content(chat: bool, text: str, reasoning: str, calls: Sequence[ToolCall]) -> dict[str, Any]:
    if not chat:
        return {"response": text, **({"thinking": reasoning} if reasoning else {})}
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if reasoning:
        message["thinking"] = reasoning
    if calls:
        message["tool_calls"] = [
            {"id": call.id, "function": {"name": call.name, "arguments": arguments_object(call.arguments)}}
            for call in calls
        ]
    return {"message": message}


def _logprobs(tokens: Sequence[Sequence[TokenLogprob]]) -> dict[str, Any]:
    if not tokens:
        return {}
    return {
        "logprobs": [{**_token(token[0]), "top_logprobs": [_token(other) for other in token[1:]]} for token in tokens]
    }


def _token(token: TokenLogprob) -> dict[str, Any]:
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.text.encode())}
