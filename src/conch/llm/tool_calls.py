"""Tool calls in a model's text, by the three forms that are in use.

    hermes    <tool_call>{"name": …, "arguments": {…}}</tool_call>, any number of them (Hermes, Qwen)
    llama3    {"name": …, "parameters": {…}}, several separated by ";", perhaps after <|python_tag|> (Llama 3)
    mistral   [TOOL_CALLS] and a JSON list, or name{…} one after another (Mistral)

A call is told when it is complete. Text that looks like a call and is none is told as what it is: text.
"""

import json
import secrets
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from conch.errors import ConfigError
from conch.llm.output import OutputParser, Part, ToolCall

_BEGIN, _END = "<tool_call>", "</tool_call>"
_PYTHON_TAG = "<|python_tag|>"
_TOOL_CALLS = "[TOOL_CALLS]"
# Of text that is kept because it may become a call. What is longer is told as text.
MAX_CALL_CHARACTERS = 1 << 20


def call_format(template: str) -> str:
    """Return the form in which a model with this chat template calls tools, "" if the template shows none."""
    for sign, name in ((_TOOL_CALLS, "mistral"), (_BEGIN, "hermes"), (_PYTHON_TAG, "llama3")):
        if sign in template:
            return name
    return ""


def call_parser(form: str) -> OutputParser:
    """Make a parser of one of the three forms. Raises ConfigError for any other."""
    if form not in _PARSERS:
        raise ConfigError(f"tool_call_parser '{form}' is unknown; known: {', '.join(_PARSERS)}")
    return _PARSERS[form]()


class HermesCalls:
    """Calls between tags, with text before, between and after them."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str, last: bool) -> list[Part]:
        """Take more text."""
        self._held += text
        parts: list[Part] = []
        while True:
            start = self._held.find(_BEGIN)
            if start < 0:
                # White space before a call is no text; whether a call follows is seen later.
                sure = self._held if last else self._held[: len(self._held) - _overlap(self._held, _BEGIN)].rstrip()
                said, self._held = _cut(self._held, len(sure))
                return _with_text(parts, said)
            end = self._held.find(_END, start)
            if end < 0 and not last and len(self._held) < MAX_CALL_CHARACTERS:
                said, self._held = _cut(self._held, len(self._held[:start].rstrip()))
                return _with_text(parts, said)
            said, self._held = _cut(self._held, start)
            # Some models forget the last tag.
            inside, self._held = _cut(self._held, end - start if end >= 0 else len(self._held))
            self._held = self._held.removeprefix(_END)
            call = _call(inside.removeprefix(_BEGIN))
            parts = _with_text(parts, said.rstrip() if call else said)
            if call:
                parts.append(call)
            else:
                parts = _with_text(parts, inside + (_END if end >= 0 else ""))


class LlamaCalls:
    """Calls and nothing else: text that begins with a brace or the tag is kept to its end."""

    def __init__(self) -> None:
        self._held = ""
        self._plain = False

    def feed(self, text: str, last: bool) -> list[Part]:
        """Take more text."""
        if self._plain:
            return _with_text([], text)
        self._held += text
        begun = self._held.lstrip()
        may_call = begun.startswith(("{", _PYTHON_TAG)) or _PYTHON_TAG.startswith(begun)
        if may_call and not last and len(self._held) < MAX_CALL_CHARACTERS:
            return []
        self._plain = True
        calls = _calls_in_row(begun.removeprefix(_PYTHON_TAG)) if may_call else []
        return [*calls] if calls else _with_text([], self._held)


class MistralCalls:
    """Text, then the mark, then calls to the end."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str, last: bool) -> list[Part]:
        """Take more text."""
        self._held += text
        start = self._held.find(_TOOL_CALLS)
        if start < 0:
            keep = 0 if last else _overlap(self._held, _TOOL_CALLS)
            said, self._held = _cut(self._held, len(self._held) - keep)
            return _with_text([], said)
        said, self._held = _cut(self._held, start)
        parts = _with_text([], said)
        if not last and len(self._held) < MAX_CALL_CHARACTERS:
            return parts
        rest, self._held = self._held, ""
        calls = _listed_calls(rest.removeprefix(_TOOL_CALLS).strip())
        return [*parts, *calls] if calls else _with_text(parts, rest)


_PARSERS: dict[str, Callable[[], OutputParser]] = {
    "hermes": HermesCalls,
    "llama3": LlamaCalls,
    "mistral": MistralCalls,
}


class NamedCall:
    """All of the text is the arguments of one function: the one that the client has chosen."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._held = ""

    def feed(self, text: str, last: bool) -> list[Part]:
        """Take more text; tell the call at the end."""
        self._held += text
        return [ToolCall(_new_id(), self._name, self._held)] if last else []


class RequiredCalls:
    """All of the text is a JSON list of calls."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str, last: bool) -> list[Part]:
        """Take more text; tell the calls at the end, or the text if it was cut short."""
        self._held += text
        if not last:
            return []
        calls = _listed_calls(self._held)
        return [*calls] if calls else _with_text([], self._held)


def required_schema(tools: Sequence[Any]) -> str:
    """Return the JSON schema of a list of one or more calls of these tools."""
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": tool["function"]["name"]}, "arguments": arguments_schema(tool)},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    return json.dumps({"type": "array", "minItems": 1, "items": {"anyOf": calls}})


def arguments_schema(tool: Any) -> Any:
    """Return the schema of a tool's arguments: any object if it does not say."""
    return tool["function"].get("parameters") or {"type": "object"}


def _call(text: str) -> ToolCall | None:
    try:
        return _of_document(orjson.loads(text))
    except orjson.JSONDecodeError:
        return None


def _of_document(document: Any) -> ToolCall | None:
    if not isinstance(document, dict) or not isinstance(document.get("name"), str):
        return None
    arguments = document.get("arguments", document.get("parameters", {}))
    if not isinstance(arguments, str):
        arguments = orjson.dumps(arguments).decode()
    return ToolCall(_new_id(), document["name"], arguments)


def _calls_in_row(text: str) -> list[ToolCall]:
    """Read objects separated by semicolons; nothing if any of it is something else."""
    calls: list[ToolCall] = []
    decoder, position = json.JSONDecoder(), 0
    while text[position:].strip(" \n;"):
        position += len(text[position:]) - len(text[position:].lstrip(" \n;"))
        try:
            document, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            return []
        call = _of_document(document)
        if call is None:
            return []
        calls.append(call)
    return calls


def _listed_calls(text: str) -> list[ToolCall]:
    """Read a JSON list of calls, or names each followed by its arguments; nothing if it is neither."""
    try:
        documents = orjson.loads(text)
    except orjson.JSONDecodeError:
        return _named_in_row(text)
    calls = [_of_document(each) for each in (documents if isinstance(documents, list) else [documents])]
    return [call for call in calls if call is not None] if all(calls) else []


def _named_in_row(text: str) -> list[ToolCall]:
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
        calls.append(ToolCall(_new_id(), name, orjson.dumps(arguments).decode()))
    return calls


def _new_id() -> str:
    # Nine characters of letters and digits, which is what Mistral's templates insist on.
    return secrets.token_hex(5)[:9]


def _cut(text: str, position: int) -> tuple[str, str]:
    return text[:position], text[position:]


def _with_text(parts: list[Part], text: str) -> list[Part]:
    return [*parts, text] if text else parts


def _overlap(text: str, mark: str) -> int:
    """Return how many characters at the end of the text may be the beginning of the mark."""
    for size in range(min(len(text), len(mark) - 1), 0, -1):
        if text.endswith(mark[:size]):
            return size
    return 0
