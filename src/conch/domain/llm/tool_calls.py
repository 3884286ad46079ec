"""Parse tool calls in a model's output, in three formats.

    hermes    <tool_call>{"name": …, "arguments": {…}}</tool_call>, repeated (Hermes, Qwen)
    llama3    {"name": …, "parameters": {…}}, separated by ";", optionally after <|python_tag|> (Llama 3)
    mistral   [TOOL_CALLS] and a JSON list, or name{…}, repeated (Mistral)

A call is returned when it is complete. A malformed call is returned as text.
"""

import json
import secrets
from collections.abc import Callable, Collection, Sequence
from typing import Any

import orjson

from conch.base.errors import BackendError, ConfigError
from conch.domain.llm.output import OutputParser, Part, ToolCall, partial_mark

HERMES = "hermes"  # the format that the server itself describes to models whose template describes no tools
_BEGIN, _END = "<tool_call>", "</tool_call>"
_PYTHON_TAG = "<|python_tag|>"
_TOOL_CALLS = "[TOOL_CALLS]"
# Of text that is held back because it may be a call; longer text is not a call.
MAX_CALL_CHARACTERS = 1 << 20
# A custom tool takes one text. To the model it is a function with this argument.
CUSTOM_INPUT = "input"


def call_format(template: str) -> str:
    """Return the format of tool calls in a chat template, "" for none."""
    for mark, name in ((_TOOL_CALLS, "mistral"), (_BEGIN, HERMES), (_PYTHON_TAG, "llama3")):
        if mark in template:
            return name
    return ""


def call_parser(form: str) -> OutputParser:
    """Return a parser for one of the three formats. Raises ConfigError for other names."""
    if form not in _PARSERS:
        raise ConfigError(f"tool_call_parser '{form}' is unknown; known: {', '.join(_PARSERS)}")
    return _PARSERS[form]()


class HermesCalls:
    """Parser of calls between tags, with text before, between and after them."""

    def __init__(self) -> None:
        self._held = ""
        self._searched = 0  # characters of an incomplete call without its end

    def feed(self, text: str, last: bool) -> list[Part]:
        """Parse more text."""
        self._held += text
        parts: list[Part] = []
        while True:
            start = self._held.find(_BEGIN)
            if start < 0:
                # White space is held back, because it is omitted before a call.
                kept = self._held if last else self._held[: len(self._held) - partial_mark(self._held, _BEGIN)].rstrip()
                before, self._held = _cut(self._held, len(kept))
                return _with_text(parts, before)
            end = self._held.find(_END, max(start, self._searched))
            if end < 0 and not last and len(self._held) < MAX_CALL_CHARACTERS:
                before, self._held = _cut(self._held, len(self._held[:start].rstrip()))
                self._searched = max(len(self._held) - len(_END), 0)
                return _with_text(parts, before)
            self._searched = 0
            before, self._held = _cut(self._held, start)
            # Some models omit the last closing tag.
            inside, self._held = _cut(self._held, end - start if end >= 0 else len(self._held))
            self._held = self._held.removeprefix(_END)
            call = _call(inside.removeprefix(_BEGIN))
            parts = _with_text(parts, before.rstrip() if call else before)
            if call:
                parts.append(call)
            else:
                parts = _with_text(parts, inside + (_END if end >= 0 else ""))


class LlamaCalls:
    """Parser of calls without text: output that begins with a brace or the tag is held back until its end."""

    def __init__(self) -> None:
        self._held = ""
        self._plain = False

    def feed(self, text: str, last: bool) -> list[Part]:
        """Parse more text."""
        if self._plain:
            return _with_text([], text)
        self._held += text
        start = self._held.lstrip()
        may_call = start.startswith(("{", _PYTHON_TAG)) or _PYTHON_TAG.startswith(start)
        if may_call and not last and len(self._held) < MAX_CALL_CHARACTERS:
            return []
        self._plain = True
        calls = _separated_calls(start.removeprefix(_PYTHON_TAG)) if may_call else []
        return [*calls] if calls else _with_text([], self._held)


class MistralCalls:
    """Parser of text, then a mark, then calls until the end."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str, last: bool) -> list[Part]:
        """Parse more text."""
        self._held += text
        start = self._held.find(_TOOL_CALLS)
        if start < 0:
            keep = 0 if last else partial_mark(self._held, _TOOL_CALLS)
            before, self._held = _cut(self._held, len(self._held) - keep)
            return _with_text([], before)
        before, self._held = _cut(self._held, start)
        parts = _with_text([], before)
        if not last and len(self._held) < MAX_CALL_CHARACTERS:
            return parts
        rest, self._held = self._held, ""
        calls = _listed_calls(rest.removeprefix(_TOOL_CALLS).strip())
        return [*parts, *calls] if calls else _with_text(parts, rest)


_PARSERS: dict[str, Callable[[], OutputParser]] = {
    HERMES: HermesCalls,
    "llama3": LlamaCalls,
    "mistral": MistralCalls,
}


class NamedCall:
    """Parser of output that is only the arguments of one function, which the client has chosen."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._held = _HeldText()

    def feed(self, text: str, last: bool) -> list[Part]:
        """Parse more text; return the call at the end. Raises BackendError if it becomes too long."""
        self._held.add(text)
        return [ToolCall(_new_id(), self._name, self._held.text())] if last else []


class RequiredCalls:
    """Parser of output that is only a JSON list of calls."""

    def __init__(self) -> None:
        self._held = _HeldText()

    def feed(self, text: str, last: bool) -> list[Part]:
        """Parse more text; return the calls at the end, or the text if it is incomplete.

        Raises BackendError if it becomes too long.
        """
        self._held.add(text)
        if not last:
            return []
        text = self._held.text()
        calls = _listed_calls(text)
        return [*calls] if calls else _with_text([], text)


class _HeldText:
    """Text that is held back until its end, at most `MAX_CALL_CHARACTERS`."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._size = 0

    def add(self, text: str) -> None:
        self._pieces.append(text)
        self._size += len(text)
        if self._size > MAX_CALL_CHARACTERS:
            raise BackendError(f"the model's tool call exceeds the maximum of {MAX_CALL_CHARACTERS} characters")

    def text(self) -> str:
        return "".join(self._pieces)


class ClientCalls:
    """Parser that returns the calls of another one as the client asked for them.

    Those of `custom` tools have a text instead of JSON; unless they may be `parallel`, only the first is returned.
    """

    def __init__(self, rest: OutputParser, *, custom: Collection[str], parallel: bool) -> None:
        self._rest = rest
        self._custom = custom
        self._parallel = parallel
        self._called = False

    def feed(self, text: str, last: bool) -> list[Part]:
        """Parse more text."""
        return [
            self._of_client(part) if isinstance(part, ToolCall) else part
            for part in self._rest.feed(text, last)
            if not isinstance(part, ToolCall) or self._is_wanted()
        ]

    def _is_wanted(self) -> bool:
        wanted = self._parallel or not self._called
        self._called = True
        return wanted

    def _of_client(self, call: ToolCall) -> ToolCall:
        if call.name not in self._custom:
            return call
        try:
            arguments = orjson.loads(call.arguments)
        except orjson.JSONDecodeError:  # it is incomplete
            arguments = None
        text = arguments.get(CUSTOM_INPUT) if isinstance(arguments, dict) else None
        return ToolCall(call.id, call.name, text if isinstance(text, str) else call.arguments, custom=True)


def required_schema(tools: Sequence[Any], *, parallel: bool = True) -> str:
    """Return the JSON schema of a non-empty list of calls of these tools, with one call unless they are `parallel`."""
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": tool["function"]["name"]}, "arguments": arguments_schema(tool)},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    limit = {} if parallel else {"maxItems": 1}
    return json.dumps({"type": "array", "minItems": 1, **limit, "items": {"anyOf": calls}})


def arguments_schema(tool: Any) -> Any:
    """Return the schema of a tool's arguments; by default any object."""
    return tool["function"].get("parameters") or {"type": "object"}


def _call(text: str) -> ToolCall | None:
    try:
        return _from_document(orjson.loads(text))
    except orjson.JSONDecodeError:
        return None


def _from_document(document: Any) -> ToolCall | None:
    if not isinstance(document, dict) or not isinstance(document.get("name"), str):
        return None
    return _new_call(document["name"], document.get("arguments", document.get("parameters", {})))


def _new_call(name: str, arguments: Any) -> ToolCall | None:
    """Return a call; None if it cannot be sent: half of a surrogate pair, an integer of over 64 bits, deep nesting."""
    try:
        encoded = orjson.dumps(arguments).decode()
        orjson.dumps(name)
    except orjson.JSONEncodeError:
        return None
    return ToolCall(_new_id(), name, arguments if isinstance(arguments, str) else encoded)


def _separated_calls(text: str) -> list[ToolCall]:
    """Parse calls separated by semicolons; return none if anything is malformed."""
    calls: list[ToolCall] = []
    decoder, position = json.JSONDecoder(), 0
    while text[position:].strip(" \n;"):
        position += len(text[position:]) - len(text[position:].lstrip(" \n;"))
        try:
            document, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            return []
        call = _from_document(document)
        if call is None:
            return []
        calls.append(call)
    return calls


def _listed_calls(text: str) -> list[ToolCall]:
    """Parse a JSON list of calls, or repeated names with arguments; return none if it is malformed."""
    try:
        documents = orjson.loads(text)
    except orjson.JSONDecodeError:
        return _named_calls(text)
    calls = [_from_document(call) for call in (documents if isinstance(documents, list) else [documents])]
    return [call for call in calls if call is not None] if all(calls) else []


def _named_calls(text: str) -> list[ToolCall]:
    calls: list[ToolCall] = []
    decoder = json.JSONDecoder()
    for piece in text.split(_TOOL_CALLS):
        brace = piece.find("{")
        name = piece[:brace].removesuffix("[ARGS]").strip()
        try:
            arguments, end = decoder.raw_decode(piece, brace) if brace > 0 else (None, 0)
        except (ValueError, RecursionError):
            return []
        if not name.replace("_", "").replace("-", "").replace(".", "").isalnum() or piece[end:].strip():
            return []
        call = _new_call(name, arguments)
        if call is None:
            return []
        calls.append(call)
    return calls


def _new_id() -> str:
    # Mistral's templates require nine letters and digits.
    return secrets.token_hex(5)[:9]


def _cut(text: str, position: int) -> tuple[str, str]:
    return text[:position], text[position:]


def _with_text(parts: list[Part], text: str) -> list[Part]:
    return [*parts, text] if text else parts
