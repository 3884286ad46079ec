"""Decode requests of Anthropic's Messages API: its conversations become those of chat templates.

A block that cannot reach the model, such as a PDF file, is refused.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import orjson

from conch.domain.generation import SamplingParams, StructuredOutput
from conch.domain.llm.images import content_of, image_part, join_contents
from conch.domain.tensor import Buffer
from conch.protocols.openai.field_rules import MESSAGES
from conch.protocols.openai.fields import Fields, InvalidField, read_object
from conch.protocols.openai.large import encode_rest
from conch.protocols.openai.nested_fields import NestedRules
from conch.protocols.openai.requests import ChatCall

_MESSAGES = NestedRules("messages[].", MESSAGES)
_SYSTEM = NestedRules("system[].", MESSAGES)
_TOOLS = NestedRules("tools[].", MESSAGES)
_ROLES = ("user", "assistant", "system")
_IMAGE_FOLLOWS = "[image: it follows the results]"
_EFFORTS = {"xhigh": "high", "max": "high"}  # templates know three


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesCall(ChatCall):
    """`POST /v1/messages`, and with `prompt_only` `/v1/messages/count_tokens`."""

    @property
    def return_prompt(self) -> Literal["", "count", "ids", "text"]:
        """The first event of a stream counts the prompt's tokens."""
        return "count" if self.stream or self.prompt_only else ""


def read_message(body: Buffer) -> MessagesCall:
    """Decode a request for a message. Raises InvalidField."""
    document = read_object(body)
    conversation = read_conversation(Fields(document))
    return _read(document, conversation, _is_prefilled(document["messages"]), _undecided(document))


def split_message(body: Buffer) -> tuple[dict[str, Any], list[bytes]]:
    """Return metadata for `join_message`, and the body without its conversation and that as JSON for the template.

    Raises InvalidField.
    """
    document = read_object(body)
    conversation = orjson.dumps(read_conversation(Fields(document)))
    prefilled = _is_prefilled(document["messages"])
    rest = {name: value for name, value in document.items() if name not in ("messages", "system")}
    return {"prefilled": prefilled, "ignored": _undecided(document)}, [encode_rest(rest), conversation]


def join_message(meta: Mapping[str, Any], parts: Sequence[Buffer]) -> MessagesCall:
    """Decode what `split_message` returns. Raises InvalidField."""
    rest, conversation = parts
    return _read(read_object(rest, checked=True), conversation, meta["prefilled"], meta["ignored"])


def counted(call: MessagesCall) -> MessagesCall:
    """Return the call that only counts the tokens of the prompt."""
    choice = call.tool_choice if call.tool_choice == "none" else "auto"
    return replace(call, prompt_only=True, stream=False, tool_choice=choice, params=SamplingParams(max_tokens=1))


def _undecided(document: Mapping[str, Any]) -> list[str]:
    """Return the fields of a conversation that have no effect."""
    return [*_MESSAGES.undecided(document.get("messages")), *_SYSTEM.undecided(document.get("system"))]


def _read(
    document: dict[str, Any],
    conversation: Sequence[dict[str, Any]] | Buffer,
    prefilled: bool,
    ignored: Sequence[str],
) -> MessagesCall:
    fields = Fields(document, MESSAGES)
    fields.ignore(*ignored)
    model = fields.required_text("model")
    given = fields.list("tools") or []
    tools = [_tool(tool, index) for index, tool in enumerate(given) if not _is_server_tool(tool)]
    fields.ignore(*_TOOLS.undecided([tool for tool in given if not _is_server_tool(tool)]))
    if len(tools) < len(given):
        fields.ignore("tools[].type")
    choice, parallel = _tool_choice(fields, tools)
    arguments, shown = _thinking(fields)
    structured, effort = _output_config(fields)
    if effort is not None:
        arguments["reasoning_effort"] = _EFFORTS.get(effort, effort)
    return MessagesCall(
        model=model,
        messages=conversation,
        params=_params(fields, structured),
        stream=fields.boolean("stream"),
        include_usage=True,
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=parallel,
        add_generation_prompt=not prefilled,
        continue_final_message=prefilled,
        include_reasoning=shown,
        template_arguments=arguments,
        ignored=fields.done(),
    )


def _params(fields: Fields, structured: StructuredOutput | None) -> SamplingParams:
    arguments: dict[str, Any] = {}
    for name, read in (("temperature", fields.number), ("top_p", fields.number), ("top_k", fields.integer)):
        value = read(name)
        if value is not None:
            arguments[name] = value
    params = SamplingParams(
        max_tokens=fields.integer("max_tokens"),
        fit_max_tokens=True,
        stop=fields.texts("stop_sequences"),
        structured=structured,
        **arguments,
    )
    params.check()
    return params


def _is_server_tool(tool: Any) -> bool:
    """Whether a tool is one that Anthropic's servers run or define: it has a type, and no schema."""
    return isinstance(tool, dict) and tool.get("type") not in (None, "custom") and "input_schema" not in tool


def _tool(tool: Any, index: int) -> dict[str, Any]:
    """Return a tool in the form for templates."""
    where = f"tools.{index}"
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
        raise InvalidField(where, f"{where}.name: Field required")
    if not isinstance(tool.get("input_schema"), dict):
        raise InvalidField(where, f"{where}.input_schema: Field required")
    function = {"name": tool["name"], "description": tool.get("description") or "", "parameters": tool["input_schema"]}
    return {"type": "function", "function": function}


def _tool_choice(fields: Fields, tools: Sequence[dict[str, Any]]) -> tuple[str | dict[str, Any], bool]:
    """Return the choice in the form of a `ChatCall`, and whether several tools may be called at a time."""
    choice = fields.inner("tool_choice")
    if choice is None:
        return ("auto" if tools else "none"), True
    kind = choice.required_text("type")
    name = choice.text("name")
    parallel = not choice.boolean("disable_parallel_tool_use")
    if kind == "tool":
        if name not in [tool["function"]["name"] for tool in tools]:
            raise choice.wrong("name", f"tool_choice.name: Tool '{name}' not found in provided tools")
        return {"name": name}, parallel
    if kind == "any" and not tools:
        raise choice.wrong("type", "tool_choice.type: 'any' needs tools, and this server runs none itself")
    if kind not in ("auto", "any", "none"):
        raise choice.wrong("type", f"tool_choice.type: must be auto, any, tool or none, got '{kind}'")
    return ("required" if kind == "any" else kind if tools else "none"), parallel


def _thinking(fields: Fields) -> tuple[dict[str, Any], bool]:
    """Return arguments of the template, and whether the reasoning is part of the answer."""
    thinking = fields.inner("thinking")
    if thinking is None:
        return {}, True
    kind = thinking.required_text("type")
    shown = thinking.text("display") != "omitted"
    if kind not in ("enabled", "disabled", "adaptive", "between_tools"):
        raise thinking.wrong("type", f"thinking.type: must be enabled, disabled or adaptive, got '{kind}'")
    return {"enable_thinking": kind != "disabled"}, shown and kind != "disabled"


def _output_config(fields: Fields) -> tuple[StructuredOutput | None, str | None]:
    """Return the schema of the answer, and the effort."""
    config = fields.inner("output_config")
    effort = None if config is None else config.text("effort")
    form = None if config is None else config.inner("format")
    form = form or fields.inner("output_format")  # an older name
    if form is None:
        return None, effort
    schema = form.object("schema")
    if form.required_text("type") != "json_schema" or schema is None:
        raise form.wrong("type", "output_config.format: must have the type json_schema and a 'schema'")
    return StructuredOutput("json", orjson.dumps(schema).decode()), effort


def _is_prefilled(messages: Any) -> bool:
    """Whether a conversation ends with the beginning of the answer: text of the assistant."""
    last = messages[-1] if isinstance(messages, list) and messages else None
    if not isinstance(last, dict) or last.get("role") != "assistant":
        return False
    content = last.get("content")
    if isinstance(content, str):
        return bool(content.strip())
    last_block = content[-1] if isinstance(content, list) and content else None
    return isinstance(last_block, dict) and last_block.get("type") == "text" and bool(str(last_block["text"]).strip())


def read_conversation(fields: Fields) -> list[dict[str, Any]]:
    """Return system prompt and messages in the form for templates. Raises InvalidField."""
    messages = fields.list("messages")
    if not messages:
        raise fields.wrong("messages", "messages: at least one message is required")
    system = _joined(_without_billing(fields.take("system")), "system", "\n\n")
    read: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    for index, message in enumerate(messages):
        for turn in _turns(message, f"messages.{index}"):
            last = read[-1] if read else None
            if turn["role"] == "system" and last is not None and last["role"] != "system":
                # Templates refuse it there, and the beginning of the prompt must stay the same for prefix caches.
                turn = {"role": "user", "content": f"<system>\n{turn['content']}\n</system>"}
            if last is not None and turn["role"] == last["role"] != "tool":  # which templates refuse
                _join_turns(last, turn)
            else:
                read.append(turn)
    return read


def _without_billing(system: Any) -> Any:
    """Return a system prompt without Claude Code's block for bills, which changes and would miss the prefix cache."""
    if not isinstance(system, list):
        return system
    return [
        block
        for block in system
        if not (isinstance(block, dict) and str(block.get("text")).startswith("x-anthropic-billing-header:"))
    ]


def _join_turns(last: dict[str, Any], turn: dict[str, Any]) -> None:
    for name in ("reasoning_content", "content"):
        contents = [content for content in (last.get(name), turn.get(name)) if content]
        if contents:
            last[name] = join_contents(contents, "\n\n")
    calls = [*last.get("tool_calls", ()), *turn.get("tool_calls", ())]
    if calls:
        last["tool_calls"] = calls


def _turns(message: Any, where: str) -> Iterator[dict[str, Any]]:
    """Yield a message as turns: the results of tools are turns by themselves; their images follow in the user's."""
    if not isinstance(message, dict):
        raise InvalidField(where, f"{where}: must be an object")
    role, content = message.get("role"), message.get("content")
    if role not in _ROLES:
        raise InvalidField(f"{where}.role", f"{where}.role: must be one of {', '.join(_ROLES)}, got {role!r}")
    if isinstance(content, str):
        yield {"role": role, "content": content}
        return
    if not isinstance(content, list):
        raise InvalidField(f"{where}.content", f"{where}.content: must be a string or an array of blocks")
    if role == "assistant":
        yield _answer(content, f"{where}.content")
        return
    pieces: list[str | dict[str, Any]] = []
    images: list[str | dict[str, Any]] = []  # of results
    sent = False
    for number, block in enumerate(content):
        place = f"{where}.content.{number}"
        kind = block.get("type") if isinstance(block, dict) and role == "user" else None
        if kind == "tool_result":
            if pieces:
                yield {"role": role, "content": content_of(pieces, "\n")}
                pieces = []
            result, shown = _without_images(block, place)
            images += shown
            yield _result(result, place)
            sent = True
        else:
            pieces.append(_image(block, place) if kind == "image" else _text(block, place))
    if pieces or images or not sent:
        yield {"role": role, "content": content_of([*images, *pieces], "\n")}


def _image(block: dict[str, Any], where: str) -> dict[str, Any]:
    source = _required(block, "source", dict, where)
    kind = source.get("type")
    if kind == "url":
        return image_part(source.get("url"), where)
    if kind != "base64":
        text = f"{where}.source: images of type {kind!r} are not supported; send them as base64"
        raise InvalidField(f"{where}.source", text)
    media_type, data = (_required(source, name, str, f"{where}.source") for name in ("media_type", "data"))
    return image_part(f"data:{media_type};base64,{data}", where)


def _without_images(block: dict[str, Any], where: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the result of a tool with a note for each image, as templates show only its text, and the images."""
    content = block.get("content")
    images: list[dict[str, Any]] = []
    if not isinstance(content, list):
        return block, images
    texts: list[Any] = []
    for number, inner in enumerate(content):
        if isinstance(inner, dict) and inner.get("type") == "image":
            images.append(_image(inner, f"{where}.content.{number}"))
            texts.append({"type": "text", "text": _IMAGE_FOLLOWS})
        else:
            texts.append(inner)
    return {**block, "content": texts}, images


def _answer(content: Sequence[Any], where: str) -> dict[str, Any]:
    """Return an earlier answer of the model."""
    texts, thoughts, calls = [], [], []
    for number, block in enumerate(content):
        place = f"{where}.{number}"
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "thinking":
            thoughts.append(_required(block, "thinking", str, place))
        elif kind == "tool_use":
            function = {
                "name": _required(block, "name", str, place),
                "arguments": _required(block, "input", dict, place),
            }
            calls.append({"id": _required(block, "id", str, place), "type": "function", "function": function})
        elif kind != "redacted_thinking":
            texts.append(_text(block, place))
    turn: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts)}
    if thoughts:
        turn["reasoning_content"] = "\n".join(thoughts)
    if calls:
        turn["tool_calls"] = calls
    return turn


def _result(block: dict[str, Any], where: str) -> dict[str, Any]:
    text = _joined(block.get("content"), f"{where}.content", "\n")
    if block.get("is_error") and not text.lstrip("< ").lower().startswith(("error", "tool_use_error")):
        text = f"Error: {text}"  # templates have no place for it
    return {"role": "tool", "tool_call_id": _required(block, "tool_use_id", str, where), "content": text}


def _joined(content: Any, where: str, separator: str) -> str:
    """Return a text that is a string or an array of blocks."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise InvalidField(where, f"{where}: must be a string or an array of blocks")
    return separator.join(_text(block, f"{where}.{number}") for number, block in enumerate(content))


def _text(block: Any, where: str) -> str:
    """Return the text of a block. Raises InvalidField for what is not text."""
    kind = block.get("type") if isinstance(block, dict) else None
    read = _TEXTS.get(kind) if isinstance(kind, str) else None
    if read is None:
        shown = "text, image (of the user), tool_use, tool_result, thinking, and documents and search results of text"
        raise InvalidField(where, f"{where}: blocks of type {kind!r} are not supported; supported are {shown}")
    return read(block, where)


def _plain(block: dict[str, Any], where: str) -> str:
    return str(_required(block, "text", str, where))


def _document(block: dict[str, Any], where: str) -> str:
    source = _required(block, "source", dict, where)
    kind = source.get("type")
    if kind == "text":
        text = _required(source, "data", str, f"{where}.source")
    elif kind == "content":
        text = _joined(source.get("content"), f"{where}.source.content", "\n")
    else:
        raise InvalidField(
            f"{where}.source", f"{where}.source: documents of type {kind!r} are not supported; send their text"
        )
    return "\n".join(str(part) for part in (block.get("title"), block.get("context"), text) if part)


def _search_result(block: dict[str, Any], where: str) -> str:
    text = _joined(block.get("content"), f"{where}.content", "\n")
    return "\n".join(str(part) for part in (block.get("title"), block.get("source"), text) if part)


def _reference(block: dict[str, Any], where: str) -> str:
    return str(_required(block, "tool_name", str, where))


_TEXTS: dict[str, Callable[[dict[str, Any], str], str]] = {
    "text": _plain,
    "document": _document,
    "search_result": _search_result,
    "tool_reference": _reference,
}


def _required(block: dict[str, Any], name: str, kind: type, where: str) -> Any:
    value = block.get(name)
    if not isinstance(value, kind):
        raise InvalidField(f"{where}.{name}", f"{where}.{name}: Field required")
    return value
