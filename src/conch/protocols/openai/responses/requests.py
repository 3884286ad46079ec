"""Decode requests of the Responses API to chats.

What the two APIs share is read as a chat completion, after renaming its fields; answers repeat the others.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import orjson

from conch.base.errors import InvalidParameter
from conch.domain.tensor import Buffer
from conch.protocols.openai.field_rules import RESPONSE
from conch.protocols.openai.fields import Fields, IgnoredField, InvalidField, read_object
from conch.protocols.openai.large import encode_rest
from conch.protocols.openai.nested_fields import NestedRules
from conch.protocols.openai.requests import ChatCall, chat_call
from conch.protocols.openai.responses.items import read_input, tool_name

# Fields of the answer that repeat the request, with their defaults.
_REPEATED: Mapping[str, Any] = {
    **dict.fromkeys(("instructions", "max_output_tokens", "max_tool_calls", "previous_response_id")),
    **dict.fromkeys(("prompt_cache_key", "prompt_cache_retention", "safety_identifier", "user", "top_logprobs")),
    "metadata": {},
    "parallel_tool_calls": True,
    "temperature": 1.0,
    "top_p": 1.0,
}
# Types of tools that OpenAI's servers run.
_SERVER_TOOLS = frozenset(
    {
        *("web_search", "web_search_preview", "file_search", "code_interpreter", "image_generation", "mcp"),
        *("computer", "computer_use_preview", "local_shell", "shell", "apply_patch", "tool_search"),
        "programmatic_tool_calling",
    }
)
# Names of the chat's fields in this API, for errors.
_NAMES = {
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
}
MAX_METADATA = 16
_TOOLS = NestedRules("tools[].", RESPONSE)
_CHOICE = NestedRules("tool_choice.", RESPONSE)
# Key of the names of ignored items; a client's field of this name is replaced.
_IGNORED = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseCall(ChatCall):
    """`POST /v1/responses`. `messages` are JSON, without `instructions`.

    `by_name` has name and namespace of tools by the names that the model knows; `repeated` are the fields that the
    answer repeats.
    """

    instructions: str = ""
    by_name: Mapping[str, tuple[str, str | None]] = field(default_factory=dict)
    repeated: Mapping[str, Any] = field(default_factory=dict)
    summarizes: bool = False  # whether reasoning is sent as its summary
    encrypts: bool = False  # whether reasoning is sent as `encrypted_content` too
    previous: str = ""  # id of the response to continue
    store: bool = True
    items: Buffer = b"[]"  # the input in JSON, for the store

    @property
    def return_prompt(self) -> Literal["", "count", "ids", "text"]:
        """The number of the prompt's tokens, if they are only counted."""
        return "count" if self.prompt_only else ""


def read_response(body: Buffer) -> ResponseCall:
    """Decode a small body. Raises InvalidField, InvalidParameter."""
    return _response_call(*_split(read_object(body)))


def split_response(body: Buffer) -> list[Buffer]:
    """Return the body without its input, the messages and the items, all in JSON. Raises InvalidField."""
    document, messages, items = _split(read_object(body))
    return [encode_rest(document), messages, items]


def join_response(rest: Buffer, messages: Buffer, items: Buffer) -> ResponseCall:
    """Decode what `split_response` has made of a body. Raises InvalidField, InvalidParameter."""
    return _response_call(read_object(rest, checked=True), messages, items)


def _split(document: dict[str, Any]) -> tuple[dict[str, Any], bytes, bytes]:
    given = document.pop("input", None)
    read = read_input(given)
    if read.tools:
        document["tools"] = [*(Fields(document).list("tools") or []), *read.tools]
    document[_IGNORED] = read.ignored
    items = b"[]"
    if document.get("store") is not False:
        message = {"type": "message", "role": "user", "content": given}
        items = orjson.dumps([message] if isinstance(given, str) else given)
    return document, orjson.dumps(read.messages), items


def _response_call(document: dict[str, Any], messages: Buffer, items: Buffer) -> ResponseCall:
    ignored_items = document.pop(_IGNORED)
    given = Fields({name: value for name, value in document.items() if name in RESPONSE}, RESPONSE)
    given.ignore(*ignored_items)
    tools = _Tools(given.list("tools") or [])
    tools.choose(given)
    given.ignore(*tools.undecided, *_CHOICE.undecided(document.get("tool_choice")))
    if tools.strict and tools.choice in (None, "auto"):
        given.ignore("tools[].strict")
    reasoning = given.inner("reasoning")
    effort = None if reasoning is None else reasoning.text("effort")
    summary = None if reasoning is None else reasoning.text("summary") or reasoning.text("generate_summary")
    text_format, text = _text_format(given)
    include = given.texts("include")
    top_logprobs = given.integer("top_logprobs")
    with_logprobs = "message.output_text.logprobs" in include or bool(top_logprobs)
    metadata = given.object("metadata") or {}
    if len(metadata) > MAX_METADATA or not all(isinstance(value, str) for value in metadata.values()):
        raise given.wrong("metadata", f"'metadata' must have at most {MAX_METADATA} texts")
    for name in ("prompt_cache_key", "safety_identifier", "user"):
        given.text(name)
    given.inner("stream_options")
    own: dict[str, Any] = {
        "instructions": given.text("instructions") or "",
        "previous": given.text("previous_response_id") or "",
        "store": given.boolean("store", True),
    }
    chat = {
        **{name: value for name, value in document.items() if name not in RESPONSE},
        "tools": tools.functions,
        "tool_choice": tools.choice,
        "max_completion_tokens": given.integer("max_output_tokens"),
        "reasoning_effort": effort,
        "response_format": text_format,
        "logprobs": with_logprobs,
        "top_logprobs": top_logprobs if with_logprobs else None,
    }
    if effort == "none":  # the argument of the templates that can turn reasoning off
        template = Fields(document).object("chat_template_kwargs") or {}
        chat["chat_template_kwargs"] = {"enable_thinking": False, **template}
    ignored = given.done()
    repeated = {name: default if document.get(name) is None else document[name] for name, default in _REPEATED.items()}
    repeated.update(
        tools=tools.repeated,
        tool_choice=document.get("tool_choice") or "auto",
        text=text,
        reasoning={"effort": effort, "summary": summary},
        truncation="disabled",
    )
    own.update(
        by_name=tools.by_name,
        repeated=repeated,
        summarizes=summary is not None,
        encrypts="reasoning.encrypted_content" in include,
        items=items,
    )
    return _as_chat(chat, messages, partial(_made, (*ignored, *tools.ignored), own))


def _made(before: Sequence[IgnoredField], own: Mapping[str, Any], /, **chat: Any) -> ResponseCall:
    return ResponseCall(**{**own, **chat, "ignored": (*before, *chat["ignored"])})


def _text_format(given: Fields) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Return `text.format` in the form of chats, and `text` for the answer."""
    text = given.inner("text")
    form = None if text is None else text.inner("format")
    kind = "text" if form is None else form.required_text("type")
    repeated = {"format": {"type": kind}, "verbosity": "medium"}
    if kind == "json_object":
        return {"type": kind}, repeated
    if form is None or kind == "text":
        return None, repeated
    if kind != "json_schema":
        raise form.wrong("type", f"'text.format.type' must be text, json_object or json_schema, got '{kind}'")
    schema = form.object("schema")
    if schema is None:
        raise form.wrong("schema", "'text.format' must hold a 'schema'")
    described = {name: form.take(name) for name in ("name", "description", "strict")}
    repeated["format"] = {"type": kind, "schema": schema, **described, "name": described["name"] or "answer"}
    return {"type": kind, "json_schema": {"schema": schema, **described}}, repeated


class _Tools:
    """The tools of a request, in the form of chats.

    `choice` is the chat's `tool_choice`. The model knows the tools of a namespace by a longer name.
    """

    def __init__(self, tools: Sequence[Any]) -> None:
        self.functions: list[dict[str, Any]] = []
        self.by_name: dict[str, tuple[str, str | None]] = {}
        self.repeated: list[Any] = []
        self.choice: Any = None
        self.strict = False  # whether a function has it
        self.ignored: list[IgnoredField] = []
        self.undecided: list[str] = _TOOLS.undecided([tool for tool in tools if _is_passed_on(tool)])
        for index, tool in enumerate(tools):
            kind = tool.get("type") if isinstance(tool, dict) else None
            if kind in ("function", "custom"):
                self.repeated.append(self._add(tool, f"tools[{index}]"))
            elif kind == "namespace" and isinstance(tool.get("tools"), list):
                inner = [self._add(member, f"tools[{index}]", str(tool.get("name", ""))) for member in tool["tools"]]
                self.repeated.append({"description": "", **tool, "tools": inner})
            elif isinstance(kind, str):
                text = f"tools of the type '{kind[:64]}' are not supported: this server runs no tools"
                self.ignored.append(IgnoredField(f"tools.{kind}", text, kind in _SERVER_TOOLS))
            else:
                raise InvalidField(f"tools[{index}]", f"'tools[{index}]' must be an object with a 'type'")

    def _add(self, tool: Any, where: str, namespace: str | None = None) -> dict[str, Any]:
        """Add a tool, and return it for the answer."""
        name = tool.get("name") if isinstance(tool, dict) else None
        if not isinstance(name, str) or tool.get("type") not in ("function", "custom"):
            raise InvalidField(where, f"'{where}' must be a tool of the type function or custom with a 'name'")
        known = tool_name(name, namespace)
        self.by_name[known] = (name, namespace)
        described = {"name": known, **{key: tool[key] for key in ("description", "format") if tool.get(key)}}
        if tool["type"] == "custom":
            self.functions.append({"type": "custom", "custom": described})
            return dict(tool)
        described.pop("format", None)
        described["parameters"] = tool.get("parameters") or {"type": "object", "properties": {}}
        self.strict = self.strict or bool(tool.get("strict"))
        self.functions.append({"type": "function", "function": described})
        return {"parameters": None, "strict": None, **tool}

    def choose(self, given: Fields) -> None:
        """Read `tool_choice`. Raises InvalidField."""
        choice = given.take("tool_choice")
        if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
            listed = choice.get("tools")
            allowed = {self._known(given, tool) for tool in (listed if isinstance(listed, list) else [listed])}
            self.functions = [tool for tool in self.functions if tool[tool["type"]]["name"] in allowed]
            choice = choice.get("mode", "auto")
        if isinstance(choice, dict):
            self.choice = {"type": "function", "function": {"name": self._known(given, choice)}}
        elif choice == "required" and not self.functions:
            raise given.wrong("tool_choice", "'tool_choice' is 'required', but there are no functions among 'tools'")
        elif choice in (None, "auto", "none", "required"):
            self.choice = choice
        else:
            raise given.wrong("tool_choice", "'tool_choice' must be none, auto, required or one of the tools")

    def _known(self, given: Fields, tool: Any) -> str:
        name = tool.get("name") if isinstance(tool, dict) else None
        for known, (own_name, namespace) in self.by_name.items():
            if name == own_name and tool.get("namespace", namespace) == namespace:
                return known
        kind = tool.get("type") if isinstance(tool, dict) else None
        text = f"'tool_choice' names a tool that 'tools' does not have, or whose type is not supported: {name or kind}"
        raise given.wrong("tool_choice", text)


def _is_passed_on(tool: Any) -> bool:
    """Whether the model is shown a tool, so that its fields matter."""
    return isinstance(tool, dict) and tool.get("type") in ("function", "custom", "namespace")


def _as_chat(document: Mapping[str, Any], messages: Buffer, make: Callable[..., ResponseCall]) -> ResponseCall:
    given = {name: value for name, value in document.items() if value is not None}
    try:
        return chat_call(given, messages, make=make, fits=True)
    except (InvalidField, InvalidParameter) as error:
        name, _, rest = (error.param or "").partition(".")
        if name not in _NAMES:
            raise
        renamed = _NAMES[name]
        raise InvalidField(f"{renamed}.{rest}" if rest else renamed, error.message.replace(name, renamed)) from None
