# Compiled by mypyc in wheels.
"""The answers of the Responses API: deltas in, the events of a stream or one document out."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import orjson

from conch.base.errors import ConchError, LimitExceeded
from conch.domain.generation import Delta, FinishReason, TokenLogprob, Usage
from conch.domain.llm.output import Arguments, Reasoning, ToolCall
from conch.protocols.generation_form import ChoiceState, GenerationForm
from conch.protocols.openai.responses.items import encoded_reasoning

# Names of the events of calls, and of the field that has the text.
_CALLS: Final = {
    "function_call": ("function_call_arguments", "arguments"),
    "custom_tool_call": ("custom_tool_call_input", "input"),
}


class ResponseForm(GenerationForm):
    """The form of one answer, whose `id` begins with `resp_`.

    `repeated` are fields of the request; `tools` has name and namespace of tools by the names that the model
    knows. Reasoning is sent as text, with `summarizes` as its own summary, with `encrypts` as `encrypted_content` too.
    `begun` is called when the answer begins; `finished` gets its complete document, also if it failed, and its items.
    """

    def __init__(
        self,
        id: str,  # noqa: A002 - the API's name
        model: str,
        repeated: Mapping[str, Any],
        tools: Mapping[str, tuple[str, str | None]],
        *,
        summarizes: bool = False,
        encrypts: bool = False,
        logprobs: bool = False,
        store: bool = False,
        begun: Callable[[], None] | None = None,
        finished: Callable[[bytes, bytes], None] | None = None,
    ) -> None:
        super().__init__()
        self._key = id.removeprefix("resp_")
        self._tools = tools
        self._summarizes = summarizes
        self._encrypts = encrypts
        self._with_logprobs = logprobs
        self._begun = begun
        self._finished = finished
        head = {"id": id, "object": "response", "created_at": int(time.time()), "model": model}
        rest = {**repeated, "background": False, "service_tier": "default", "store": store}
        self._head = orjson.dumps({**head, **rest})[:-1]
        self._number = 0  # of the next event
        self._items: list[bytes] = []  # complete
        self._open = ""  # kind of the item to which the next text may belong
        self._call: dict[str, Any] = {}  # the item, if that is a call
        self._id = ""  # of the open item
        self._prefix = b""  # of the events of its text
        self._text: list[str] = []  # of it
        self._logprobs: list[Any] = []  # of it
        self._blank = ""  # white space that begins a message, unless nothing follows
        self._reasoning_tokens = 0
        self._finish = FinishReason.STOP

    def running(self) -> bytes:
        """Return the document of an answer that is not complete."""
        return self._document("in_progress", None, None)

    def chunks(self, state: ChoiceState, delta: Delta) -> bytes:
        """Return the events of a delta."""
        parts = state.parser.feed(delta.text, delta.finish_reason is not None)
        if delta.finish_reason is not None:
            self._finish = delta.finish_reason
        if len(parts) == 1 and self._open == "message" and isinstance(parts[0], str) and not delta.logprobs:
            return self._text_event(parts[0])
        events = self._first_events() if not state.begun else b""
        state.begun = True
        thinks = not parts and self._open == "reasoning"
        for part in parts:
            if isinstance(part, str):
                events += self._message(part, delta.logprobs if self._with_logprobs else ())
            elif isinstance(part, ToolCall):
                events += self._begin_call(part)
                if part.source is None:
                    events += self._text_event(part.arguments) + self._close()
            elif isinstance(part, Arguments):
                events += self._text_event(part.text)
                if part.last:
                    events += self._close()
            else:
                thinks = True
                events += self._reasoning(part)
        if thinks:
            self._reasoning_tokens += len(delta.token_ids)
        return events

    def take(self, state: ChoiceState, delta: Delta) -> None:
        """Store a delta for an answer in one piece."""
        self.chunks(state, delta)

    def end(self, states: Sequence[ChoiceState], usage: Usage) -> bytes:
        """Return the last events."""
        events = b"" if states[0].begun else self._first_events()
        cut = self._finish is not FinishReason.STOP
        events += self._close(cut=cut)
        kind = "incomplete" if cut else "completed"
        return events + self._last_event(kind, self._complete(kind, usage))

    def failure(self, error: ConchError) -> bytes:
        """Return the events of an answer that fails."""
        code = "rate_limit_exceeded" if isinstance(error, LimitExceeded) else "server_error"
        events = self._close(cut=True)
        document = self._document("failed", None, {"code": code, "message": error.message})
        self._finish_with(document)
        events += self._last_event("failed", document)
        return events + self._event("error", {"code": code, "message": error.message, "param": None})

    def cancelled(self) -> bytes:
        """Return the document of an answer that was cancelled."""
        self._close(cut=True)
        return self._document("cancelled", None, None)

    def whole(self, states: Sequence[ChoiceState], usage: Usage) -> Iterator[bytes]:  # noqa: ARG002 - of other forms
        """Yield the answer in one piece."""
        cut = self._finish is not FinishReason.STOP
        self._close(cut=cut)
        yield self._complete("incomplete" if cut else "completed", usage)

    def _complete(self, status: str, usage: Usage) -> bytes:
        document = self._document(status, usage, None)
        self._finish_with(document)
        return document

    def _finish_with(self, document: bytes) -> None:
        if self._finished is not None:
            self._finished(document, b"[" + b",".join(self._items) + b"]")

    def _document(self, status: str, usage: Usage | None, error: dict[str, Any] | None) -> bytes:
        fields: dict[str, Any] = {
            "status": status,
            "error": error,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "completed_at": int(time.time()) if status == "completed" else None,
            "usage": None if usage is None else self._usage(usage),
        }
        return b'%s,"output":[%s],%s' % (self._head, b",".join(self._items), orjson.dumps(fields)[1:])

    def _usage(self, usage: Usage) -> dict[str, Any]:
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": min(self._reasoning_tokens, usage.completion_tokens)},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }

    def _event(self, kind: str, fields: dict[str, Any]) -> bytes:
        document = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return b"event: %s\ndata: %s\n\n" % (kind.encode(), orjson.dumps(document))

    def _last_event(self, status: str, document: bytes) -> bytes:
        return self._event(f"response.{status}", {"response": orjson.Fragment(document)})

    def _first_events(self) -> bytes:
        document = self.running()
        if self._begun is not None:
            self._begun()
        return self._last_event("created", document) + self._last_event("in_progress", document)

    def _added(self, item: dict[str, Any]) -> bytes:
        return self._event("response.output_item.added", {"output_index": len(self._items), "item": item})

    def _done(self, item: dict[str, Any]) -> bytes:
        encoded = orjson.dumps(item)
        fields = {"output_index": len(self._items), "item": orjson.Fragment(encoded)}
        self._items.append(encoded)
        return self._event("response.output_item.done", fields)

    def _new_id(self, kind: str) -> str:
        return f"{kind}_{self._key}{len(self._items):02x}"

    def _of_item(self, kind: str, fields: dict[str, Any]) -> bytes:
        """Return an event of the open item."""
        return self._event(kind, {"item_id": self._id, "output_index": len(self._items), **fields})

    def _begin(self, kind: str, name: str, event: str, index: str = "") -> None:
        """Open an item, whose text is sent as `event`; `index` names the index of its part, if it has parts."""
        self._open, self._id = kind, self._new_id(name)
        fields = {"type": event, "item_id": self._id, "output_index": len(self._items)}
        if index:
            fields[index] = 0
        if kind == "message":
            fields["logprobs"] = []
        self._prefix = b"event: %s\ndata: %s" % (event.encode(), orjson.dumps(fields)[:-1])
        self._text, self._logprobs = [], []

    def _text_event(self, text: str) -> bytes:
        """Return the event of a text in the open item."""
        self._text.append(text)
        number = self._number
        self._number = number + 1
        return b'%s,"sequence_number":%d,"delta":%s}\n\n' % (self._prefix, number, orjson.dumps(text))

    def _message(self, text: str, logprobs: Sequence[Sequence[TokenLogprob]]) -> bytes:
        events = b""
        if self._open != "message":
            text = self._blank + text
            # Models write empty lines between and after calls.
            if text.isspace():
                self._blank = text
                return b""
            self._blank = ""
            events = self._close()
            self._begin("message", "msg", "response.output_text.delta", "content_index")
            item = {"type": "message", "id": self._id, "status": "in_progress", "role": "assistant", "content": []}
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            events += self._added(item)
            events += self._of_item("response.content_part.added", {"content_index": 0, "part": part})
        if not logprobs:
            return events + self._text_event(text)
        described = [_logprob(token) for token in logprobs]
        self._text.append(text)
        self._logprobs += described
        fields = {"content_index": 0, "delta": text, "logprobs": described}
        return events + self._of_item("response.output_text.delta", fields)

    def _reasoning(self, part: Reasoning) -> bytes:
        events = b""
        if self._open != "reasoning":
            events = self._close()
            if self._summarizes:
                self._begin("reasoning", "rs", "response.reasoning_summary_text.delta", "summary_index")
            else:
                self._begin("reasoning", "rs", "response.reasoning_text.delta", "content_index")
            item: dict[str, Any] = {"type": "reasoning", "id": self._id, "summary": [], "status": "in_progress"}
            events += self._added(item)
            events += self._reasoning_part("added", "")
        return events + self._text_event(part.text)

    def _reasoning_part(self, event: str, text: str) -> bytes:
        if self._summarizes:
            fields = {"summary_index": 0, "part": {"type": "summary_text", "text": text}}
            return self._of_item(f"response.reasoning_summary_part.{event}", fields)
        fields = {"content_index": 0, "part": {"type": "reasoning_text", "text": text}}
        return self._of_item(f"response.content_part.{event}", fields)

    def _close(self, *, cut: bool = False) -> bytes:
        """Complete the open item, if there is one; `cut`: the answer ends in the middle of it."""
        kind, text = self._open, "".join(self._text)
        self._open = ""
        status = "incomplete" if cut else "completed"
        if kind == "message":
            part = {"type": "output_text", "text": text, "annotations": [], "logprobs": self._logprobs}
            fields = {"content_index": 0, "text": text, "logprobs": self._logprobs}
            events = self._of_item("response.output_text.done", fields)
            events += self._of_item("response.content_part.done", {"content_index": 0, "part": part})
            item = {"type": kind, "id": self._id, "status": status, "role": "assistant", "content": [part]}
            return events + self._done(item)
        if kind == "reasoning":
            index = "summary_index" if self._summarizes else "content_index"
            event = "response.reasoning_summary_text.done" if self._summarizes else "response.reasoning_text.done"
            events = self._of_item(event, {index: 0, "text": text})
            events += self._reasoning_part("done", text)
            item = {"type": kind, "id": self._id, "summary": [], "status": status}
            if self._summarizes:
                item["summary"] = [{"type": "summary_text", "text": text}]
            else:
                item["content"] = [{"type": "reasoning_text", "text": text}]
            if self._encrypts:
                item["encrypted_content"] = encoded_reasoning(text)
            return events + self._done(item)
        return self._close_call(kind, text, cut=cut) if kind else b""

    def _begin_call(self, call: ToolCall) -> bytes:
        events = self._close()
        self._blank = ""
        name, namespace = self._tools.get(call.name, (call.name, None))
        kind = "custom_tool_call" if call.custom else "function_call"
        self._begin(kind, "ctc" if call.custom else "fc", f"response.{_CALLS[kind][0]}.delta")
        item: dict[str, Any] = {"type": kind, "id": self._id, "status": "in_progress", "call_id": call.id, "name": name}
        if namespace is not None:
            item["namespace"] = namespace
        self._call = {**item, _CALLS[kind][1]: ""}
        return events + self._added(self._call)

    def _close_call(self, kind: str, text: str, *, cut: bool) -> bytes:
        event, field = _CALLS[kind]
        # A custom call whose JSON was cut has that instead of its text.
        is_document = kind == "function_call" or text.lstrip().startswith("{")
        cut = (cut or self._finish is FinishReason.LENGTH) and is_document and not _is_json(text)
        status = "incomplete" if cut else "completed"
        events = self._of_item(f"response.{event}.done", {field: text})
        return events + self._done({**self._call, field: text, "status": status})


def _is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def _logprob(token: Sequence[TokenLogprob]) -> dict[str, Any]:
    entries = [
        {"token": choice.text, "logprob": choice.logprob, "bytes": list(choice.text.encode())} for choice in token
    ]
    return {**entries[0], "top_logprobs": entries[1:]}
