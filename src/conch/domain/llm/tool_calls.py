"""Parse tool calls in a model's output, in three formats.

    hermes    <tool_call>{"name": …, "arguments": {…}}</tool_call>, repeated (Hermes, Qwen)
    llama3    {"name": …, "parameters": {…}}, separated by ";", optionally after <|python_tag|> (Llama 3)
    mistral   [TOOL_CALLS] and a JSON list, or name{…}, repeated (Mistral)

A call is returned when its name is known, and its arguments as they come. What turns out not to be a call before its
arguments begin is returned as text.
"""

import json
import re
import secrets
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, NamedTuple

import orjson

from conch.base.errors import BackendError, ConfigError
from conch.domain.llm.output import Arguments, OutputParser, Part, ToolCall, partial_mark

HERMES = "hermes"  # the format that the server itself describes to models whose template describes no tools
_BEGIN, _END = "<tool_call>", "</tool_call>"
_PYTHON_TAG = "<|python_tag|>"
_TOOL_CALLS = "[TOOL_CALLS]"
# Of a call's arguments, and of text that is held back because it may be a call; longer text is not a call.
MAX_CALL_CHARACTERS = 1 << 20
# Of the text before arguments that are returned as they come; after a longer one, the call is returned as a whole.
_MAX_SOURCE_CHARACTERS = 4096
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
    if form not in _FORMATS:
        raise ConfigError(f"tool_call_parser '{form}' is unknown; known: {', '.join(_FORMATS)}")
    return _Calls(_FORMATS[form])


class _Format(NamedTuple):
    """How calls are written.

    Calls follow the `mark` anywhere in the text, or begin the output with one of `starts`. `before` matches what comes
    before a call's name or object, `between` has the characters after one; `end` is a tag after it.
    """

    mark: str
    before: re.Pattern[str]
    starts: tuple[str, ...] = ()
    between: str = " \n"
    end: str = ""
    trims: bool = False  # white space before the mark is omitted
    named: bool = False  # a call may be a name and its arguments


_FORMATS: Final = {
    HERMES: _Format(_BEGIN, re.compile(rf"\s*{_BEGIN}\s*"), end=_END, trims=True),
    "llama3": _Format(
        _PYTHON_TAG, re.compile(rf"\s*(?:{re.escape(_PYTHON_TAG)})?[\s;]*"), ("{", _PYTHON_TAG), between=" \n;"
    ),
    "mistral": _Format(
        _TOOL_CALLS, re.compile(rf"(?:{re.escape(_TOOL_CALLS)})?\s*\[?\s*"), between=" \n\t\r,]", named=True
    ),
}
_REQUIRED: Final = _Format("", re.compile(r"\s*\[?\s*"), ("[", "{"), between=" \n\t\r,]")
# What comes before the arguments of a call, if these are an object.
_OBJECT: Final = re.compile(
    r'\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)', re.DOTALL
)
_NAME: Final = re.compile(r"([\w.-]+)\s*(?:\[ARGS\])?\s*(?=\{)")
_PART_OF_NAME: Final = re.compile(r"[\w.-]*\s*[\[\]ARGS]*\s*")


class _ObjectEnd:
    """Finds the end of a JSON object in text that comes in pieces, `depth` levels below its beginning."""

    _OUTSIDE: Final = re.compile(r'["{}\[\]]')
    _INSIDE: Final = re.compile(r'["\\]')

    def __init__(self, depth: int = 0) -> None:
        self._depth = depth
        self._in_string = False
        self._escaped = False

    def find(self, text: str, at: int = 0) -> int:
        """Return the position after the end in a text, of which the part from `at` is new; -1 if it has none."""
        while at < len(text):
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            match = (self._INSIDE if self._in_string else self._OUTSIDE).search(text, at)
            if match is None:
                return -1
            at = match.end()
            character = match[0]
            if character == '"':
                self._in_string = not self._in_string
            elif character == "\\":
                self._escaped = True
            else:
                self._depth += 1 if character in "{[" else -1
                if not self._depth:
                    return at
        return -1


class _Calls:
    """Parser of calls in one of the formats. A method for each state returns whether there is a next state."""

    complete = False

    def __init__(self, form: _Format) -> None:
        self._form = form
        self._held = ""
        self._parts: list[Part] = []
        self._next: Callable[[bool], bool] = self._text
        self._object = _ObjectEnd()
        self._searched = 0  # characters of the held text in which the object's end was searched
        self._size = 0  # characters of the arguments
        self._wrapped = False  # whether the arguments are part of an object

    def feed(self, text: str, last: bool) -> list[Part]:
        """Parse more text. Raises BackendError if a call's arguments become too long."""
        self._held += text
        while self._next(last):
            pass
        parts, self._parts = self._parts, []
        return parts

    def _take(self, count: int) -> str:
        taken, self._held = self._held[:count], self._held[count:]
        return taken

    def _put(self, text: str) -> None:
        if text:
            self._parts.append(text)

    def _text(self, last: bool) -> bool:
        """Before a mark."""
        form, held = self._form, self._held
        if form.starts:
            start = held.lstrip()
            if not last and form.mark.startswith(start):
                return False
            self._next = self._head if start.startswith(form.starts) else self._plain
            return True
        position = held.find(form.mark)
        count = position if position >= 0 else len(held) if last else len(held) - partial_mark(held, form.mark)
        if form.trims and (position >= 0 or not last):
            count = len(held[:count].rstrip())
        self._put(self._take(count))
        if position >= 0:
            self._next = self._head
        return position >= 0

    def _plain(self, _last: bool) -> bool:
        """In text after which there are no calls."""
        self._put(self._take(len(self._held)))
        return False

    def _head(self, last: bool) -> bool:
        """From a mark to the arguments of a call, or to its end."""
        match = self._form.before.match(self._held)
        begin = match.end() if match else 0
        if self._held.startswith("{", begin):
            return self._begins(_OBJECT.match(self._held, begin, _MAX_SOURCE_CHARACTERS)) or self._whole(begin, last)
        if self._form.named and self._begins(_NAME.match(self._held, begin, _MAX_SOURCE_CHARACTERS)):
            return True
        rest = self._held[begin : begin + _MAX_SOURCE_CHARACTERS]
        if not last and (not rest or (self._form.named and _PART_OF_NAME.fullmatch(self._held, begin))):
            return len(rest) == _MAX_SOURCE_CHARACTERS and self._is_text(begin)
        return self._is_text(begin)

    def _begins(self, match: re.Match[str] | None) -> bool:
        """Return the beginning of a call, if its name can be sent."""
        if match is None:
            return False
        name = match[1]
        self._wrapped = name.startswith('"')
        if self._wrapped:
            try:
                name = orjson.loads(name)
            except orjson.JSONDecodeError:  # half of a surrogate pair
                return False
        self._parts.append(ToolCall(_new_id(), name, "", source=self._take(match.end())))
        self._object = _ObjectEnd()
        self._searched = self._size = 0
        self._next = self._arguments
        return True

    def _whole(self, begin: int, last: bool) -> bool:
        """In a call that is returned when it is complete."""
        end = self._object.find(self._held, max(begin, self._searched))
        self._searched = len(self._held)
        if end < 0 and not last and len(self._held) < MAX_CALL_CHARACTERS:
            return False
        self._object, self._searched = _ObjectEnd(), 0
        call = _call(self._held[begin:end]) if end >= 0 else None
        if call is None:
            return self._is_text(max(end, begin))
        self._parts.append(call)
        self._take(end)
        self._next = self._after
        return True

    def _is_text(self, count: int) -> bool:
        """Return as many characters as text, or all if it cannot contain a mark."""
        self._next = self._plain if self._form.starts else self._text
        self._put(self._take(0 if self._form.starts else count))
        return True

    def _arguments(self, _last: bool) -> bool:
        end = self._object.find(self._held)
        text = self._take(end if end >= 0 else len(self._held))
        self._size += len(text)
        _check_size(self._size)
        if text:
            self._parts.append(Arguments(text, end >= 0))
        if end >= 0:
            self._object = _ObjectEnd()
            self._next = self._rest if self._wrapped else self._after
        return end >= 0

    def _rest(self, _last: bool) -> bool:
        """Between the arguments and the end of the object."""
        self._held = self._held.lstrip()
        if not self._held:
            return False
        self._next = self._after
        if self._held[0] == "}":
            self._take(1)
        elif self._held[0] == ",":
            self._object = _ObjectEnd(depth=1)
            self._next = self._skipped
        return True

    def _skipped(self, _last: bool) -> bool:
        end = self._object.find(self._held)
        self._take(end if end >= 0 else len(self._held))
        if end >= 0:
            self._object = _ObjectEnd()
            self._next = self._after
        return end >= 0

    def _after(self, last: bool) -> bool:
        """After a call."""
        form = self._form
        self._held = self._held.lstrip(form.between)
        if not last and (not self._held or (form.end and form.end.startswith(self._held) and form.end != self._held)):
            return False
        if form.end:
            self._held = self._held.removeprefix(form.end)
        elif self._held.startswith("{"):
            self._next = self._head
            return True
        self._next = self._plain if form.starts else self._text
        return True


class NamedCall:
    """Parser of output that is only the arguments of one function, which the client has chosen."""

    complete = False

    def __init__(self, name: str) -> None:
        self._name = name
        self._size = -1  # before the call

    def feed(self, text: str, last: bool) -> list[Part]:
        """Parse more text. Raises BackendError if it becomes too long."""
        parts: list[Part] = []
        if self._size < 0 and (text or last):
            parts.append(ToolCall(_new_id(), self._name, "", source=""))
            self._size = 0
        self._size += len(text)
        _check_size(self._size)
        return [*parts, Arguments(text, last)] if text or last else parts


def required_calls() -> OutputParser:
    """Return a parser of output that is only a JSON list of calls."""
    return _Calls(_REQUIRED)


def _check_size(characters: int) -> None:
    if characters > MAX_CALL_CHARACTERS:
        raise BackendError(f"the model's tool call exceeds the maximum of {MAX_CALL_CHARACTERS} characters")


class ClientCalls:
    """Parser that returns the calls of another one as the client asked for them.

    Calls of `custom` tools have a text instead of JSON. They are returned when they are complete, as all calls are if
    they should be `whole`; one that the model does not complete is text. Unless calls may be `parallel`, the output is
    complete after the first.
    """

    def __init__(
        self, rest: OutputParser, *, custom: Collection[str] = (), parallel: bool = True, whole: bool = False
    ) -> None:
        self._rest = rest
        self._custom = custom
        self._parallel = parallel
        self._whole = whole
        self._call: ToolCall | None = None  # whose arguments are collected
        self._collected: list[str] = []
        self.complete = False

    def feed(self, text: str, last: bool) -> list[Part]:
        """Parse more text."""
        parts: list[Part] = []
        for part in [] if self.complete else self._rest.feed(text, last):
            ended = False
            if isinstance(part, ToolCall):
                ended = part.source is None
                if self._whole or part.name in self._custom:
                    self._call, self._collected = part, [part.arguments]
                else:
                    parts.append(part)
            elif isinstance(part, Arguments):
                ended = part.last
                if self._call is not None:
                    self._collected.append(part.text)
                else:
                    parts.append(part)
            else:
                parts.append(part)
            if ended:
                if self._call is not None:
                    parts.append(self._of_client(self._call))
                if not self._parallel:
                    self.complete = True
                    return parts
        if last and self._call is not None and not self.complete:
            parts.append((self._call.source or "") + "".join(self._collected))
        return parts

    def _of_client(self, call: ToolCall) -> ToolCall:
        text, self._call = "".join(self._collected), None
        custom = call.name in self._custom
        if custom:
            try:
                arguments = orjson.loads(text)
            except orjson.JSONDecodeError:  # it is incomplete
                arguments = None
            custom_input = arguments.get(CUSTOM_INPUT) if isinstance(arguments, dict) else None
            text = custom_input if isinstance(custom_input, str) else text
        return ToolCall(call.id, call.name, text, custom)


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


def arguments_object(text: str) -> dict[str, Any]:
    """Return the arguments of a call as an object; those that are not one, such as JSON that was cut, within one."""
    try:
        arguments = orjson.loads(text)
    except orjson.JSONDecodeError:
        arguments = text
    return arguments if isinstance(arguments, dict) else {"arguments": arguments}


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


def _new_id() -> str:
    # Mistral's templates require nine letters and digits.
    return secrets.token_hex(5)[:9]
