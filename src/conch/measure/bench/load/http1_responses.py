# Compiled by mypyc in wheels.
"""Server-sent events of streamed answers: what their chunks hold."""

from abc import ABC, abstractmethod
from typing import Any, Final

import orjson

from conch.measure.bench.generator import ResponseKind
from conch.measure.bench.load.connection import KnownAnswers, LoadOwner, LoadRequest
from conch.measure.bench.records import RequestOutcome

_OPENAI_STREAM: Final = int(ResponseKind.OPENAI_STREAM)
_OK: Final = int(RequestOutcome.OK)
_SERVER_ERROR: Final = int(RequestOutcome.SERVER_ERROR)
_WRONG_ANSWER: Final = int(RequestOutcome.WRONG_ANSWER)
_MAX_EVENT_BYTES: Final = 16 * 1024 * 1024
# Fields of generate_stream's events that are not outputs.
_NOT_OUTPUTS: Final = ("id", "model_name", "model_version", "sequence_start", "sequence_end")


class ResponseStream(ABC):
    """The events of one streamed answer, fed in pieces of any size."""

    def __init__(self, owner: LoadOwner, request: LoadRequest) -> None:
        self._owner = owner
        self._request = request
        self._held = b""  # an incomplete line
        self._data: list[bytes] = []  # lines of the present event
        self._texts: list[str] = []
        self.finished = False  # whether the stream has said that it is complete, or failed
        self.outcome = _OK
        self.message = ""

    def feed(self, data: bytes, now_ns: int) -> bool:
        """Process bytes that arrived at `now_ns`; False if the request was cancelled by them."""
        lines = (self._held + data if self._held else data).split(b"\n")
        self._held = lines.pop()
        if len(self._held) > _MAX_EVENT_BYTES:
            self._malformed(f"an event has more than {_MAX_EVENT_BYTES} bytes")
            self._held = b""
        for line in lines:
            if line.endswith(b"\r"):
                line = line[:-1]
            if line.startswith(b"data:"):
                self._data.append(line[5:])
            elif not line and self._data:
                event = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
                self._data = []
                if not self._event(event.strip(), now_ns):
                    return False
        return True

    def end(self, now_ns: int) -> bool:
        """Process the end of the body; False if the request was cancelled by what came last."""
        if (self._held or self._data) and not self.feed(b"\n\n", now_ns):
            return False
        self._request.text = "".join(self._texts)
        problem = self._end_problem()
        if problem:
            self._malformed(problem)
        return True

    @abstractmethod
    def _end_problem(self) -> str:
        """Return what is wrong with a stream that has ended, "" if nothing is."""

    @abstractmethod
    def _chunk(self, chunk: dict[str, Any], now_ns: int) -> bool:
        """Process the JSON object of an event; False if the request was cancelled by it."""

    def _event(self, event: bytes, now_ns: int) -> bool:
        if event == b"[DONE]":
            self.finished = True
            return True
        try:
            chunk = orjson.loads(event)
        except ValueError:
            self._malformed(f"an event is not valid JSON: {event[:80]!r}")
            return True
        if not isinstance(chunk, dict):
            self._malformed(f"an event is not a JSON object: {event[:80]!r}")
            return True
        error = chunk.get("error")
        if error:
            self._fail(error)
            return True
        return self._chunk(chunk, now_ns)

    def _content(self, text: str) -> None:
        if self._request.encoded.keep_body:
            self._texts.append(text)

    def _fail(self, error: object) -> None:
        self.outcome = _SERVER_ERROR
        self.message = _error_text(error)
        self.finished = True

    def _malformed(self, message: str) -> None:
        if self.outcome == _OK:
            self.outcome = _WRONG_ANSWER
            self.message = message


class OpenAiStream(ResponseStream):
    """Chunks of chat and of text completions."""

    def __init__(self, owner: LoadOwner, request: LoadRequest) -> None:
        super().__init__(owner, request)
        self._tokens = 0  # of the chunks so far, as the server has reported them
        self._has_choices = False

    def _end_problem(self) -> str:
        if not self.finished:
            return "the stream ended without [DONE]"
        return "" if self._has_choices else "the stream has no choices"

    def _chunk(self, chunk: dict[str, Any], now_ns: int) -> bool:
        if chunk.get("object") == "error":  # of vLLM before 0.10
            self._fail(chunk.get("message"))
            return True
        characters = 0
        choices = chunk.get("choices")
        if isinstance(choices, list):
            self._has_choices = self._has_choices or len(choices) > 0
            for choice in choices:
                if isinstance(choice, dict):
                    characters += self._choice(choice)
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            read_usage(self._request, usage)
        if not characters:  # its tokens, such as a part of a character, are of the next chunk with text
            return True
        tokens = max(0, self._request.output_tokens - self._tokens)
        self._tokens += tokens
        return self._owner.responded(self._request, now_ns, tokens, characters)

    def _choice(self, choice: dict[str, Any]) -> int:
        delta = choice.get("delta")
        if not isinstance(delta, dict):  # of text completions
            text = choice.get("text")
            if not isinstance(text, str):
                return 0
            self._content(text)
            return len(text)
        characters = 0
        text = delta.get("content")
        if isinstance(text, str):
            self._content(text)
            characters += len(text)
        if len(delta) > 1 or not characters:
            text = delta.get("reasoning_content") or delta.get("reasoning")
            if isinstance(text, str):
                characters += len(text)
            calls = delta.get("tool_calls")
            if isinstance(calls, list):
                characters += _call_characters(calls)
        return characters


class GenerateStream(ResponseStream):
    """Responses of Triton's generate_stream, each of which counts; the end of the body ends them."""

    def __init__(self, owner: LoadOwner, request: LoadRequest, answers: KnownAnswers | None) -> None:
        super().__init__(owner, request)
        self._answers = answers

    def _end_problem(self) -> str:
        return "" if self.finished else "the stream ended without a response"

    def _chunk(self, chunk: dict[str, Any], now_ns: int) -> bool:
        if self._answers is not None:
            wrong = self._answers.problem(orjson.dumps(chunk), not self.finished)
            if wrong:
                self._malformed(wrong)
        self.finished = True
        characters = 0
        for name, value in chunk.items():
            if isinstance(value, str) and name not in _NOT_OUTPUTS:
                characters += len(value)
                self._content(value)
        return self._owner.responded(self._request, now_ns, 0, characters)


def new_stream(owner: LoadOwner, request: LoadRequest, answers: KnownAnswers | None = None) -> ResponseStream:
    """Return what reads the streamed answer to a request."""
    if request.encoded.kind == _OPENAI_STREAM:
        return OpenAiStream(owner, request)
    return GenerateStream(owner, request, answers)


def read_openai_answer(request: LoadRequest) -> str:
    """Read `usage` and text of an answer that is not streamed; return what is wrong with it, or ""."""
    try:
        answer = orjson.loads(request.body)
    except ValueError:
        return f"the answer is not valid JSON: {request.body[:80]!r}"
    if not isinstance(answer, dict):
        return f"the answer is not a JSON object: {request.body[:80]!r}"
    usage = answer.get("usage")
    if isinstance(usage, dict):
        read_usage(request, usage)
    if answer.get("error"):
        return f"an error in an answer of status 200: {_text_of(answer['error'])}"
    choices = answer.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        message = choices[0].get("message")
        text = message.get("content") if isinstance(message, dict) else choices[0].get("text")
        if isinstance(text, str):
            request.text = text
        elif not isinstance(message, dict):  # whose content is null beside a tool call
            return "the first choice has neither message nor text"
    elif not isinstance(answer.get("data"), list) or not answer["data"]:
        return "the answer has neither choices nor embeddings"
    return ""


def read_usage(request: LoadRequest, usage: dict[str, Any]) -> None:
    """Read counts of tokens from the `usage` of an answer."""
    request.input_tokens = _count(usage.get("prompt_tokens"), request.input_tokens)
    request.output_tokens = _count(usage.get("completion_tokens"), request.output_tokens)
    details = usage.get("prompt_tokens_details")
    if isinstance(details, dict):
        request.cached_tokens = _count(details.get("cached_tokens"), request.cached_tokens)
    details = usage.get("completion_tokens_details")
    if isinstance(details, dict):
        request.reasoning_tokens = _count(details.get("reasoning_tokens"), request.reasoning_tokens)


def _count(value: object, before: int) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 31 else before


def _call_characters(calls: list[Any]) -> int:
    characters = 0
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            for part in (function.get("name"), function.get("arguments")):
                if isinstance(part, str):
                    characters += len(part)
    return characters


def _error_text(error: object) -> str:
    return f"error in the stream: {_text_of(error)}"


def _text_of(error: object) -> str:
    if isinstance(error, dict):
        error = error.get("message", error)
    return str(error)[:300]
