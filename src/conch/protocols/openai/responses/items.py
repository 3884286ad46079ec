"""Input items of the Responses API, as messages for a chat template.

Items of one turn of the model, such as its reasoning, its text and its calls, become one message. What the template
cannot show and the model does not need is left out, and named.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from conch.domain.llm.images import content_of, image_part, join_contents
from conch.domain.llm.tool_calls import arguments_object
from conch.protocols.openai.field_rules import RESPONSE, SERVER_ITEMS
from conch.protocols.openai.fields import InvalidField
from conch.protocols.openai.nested_fields import MAX_PATHS, NestedRules

# Of reasoning that is sent back as `encrypted_content`: it is encoded, not encrypted, as the client sees it anyway.
_REASONING = "conch:"
_ITEMS = NestedRules("input[].", RESPONSE)
_TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")


@dataclass(slots=True)
class ReadInput:
    """What the input items of a request say.

    `tools` are those that items add; `ignored` are names of items and fields without an effect.
    """

    messages: list[dict[str, Any]] = field(default_factory=list)
    tools: list[Any] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)

    def ignore(self, name: str) -> None:
        """Name something that has no effect."""
        if name not in self.ignored and len(self.ignored) < MAX_PATHS:
            self.ignored.append(name)


def tool_name(name: str, namespace: object) -> str:
    """Return the name by which the model knows a tool of a namespace."""
    return f"{namespace}__{name}" if isinstance(namespace, str) and namespace else name


def encoded_reasoning(text: str) -> str:
    """Return reasoning as the `encrypted_content` of an item."""
    return _REASONING + base64.b64encode(text.encode()).decode()


def read_input(value: Any) -> ReadInput:
    """Return what the field `input` says: a text, or items. Raises InvalidField."""
    reader = _ItemReader()
    if isinstance(value, str):
        if not value:
            raise InvalidField("input", "'input' must not be empty")
        reader.add_text("user", value)
    elif not isinstance(value, list) or not value:
        raise InvalidField("input", "you must provide 'input': a text, or an array of at least one item")
    else:
        for index, item in enumerate(value):
            reader.add(item, f"input[{index}]")
    conversation = reader.conversation()
    if not conversation.messages:
        raise InvalidField("input", "'input' has no message")
    return conversation


def messages_of(items: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the messages of the items of an answer."""
    reader = _ItemReader()
    for index, item in enumerate(items):
        reader.add(item, f"output[{index}]")
    return reader.conversation().messages


def with_instructions(messages: bytes, instructions: str) -> bytes:
    """Put instructions before messages in JSON, as a system message, or at the begin of the one that they have."""
    if not instructions:
        return messages
    system = b'[{"role":"system","content":"'
    text = orjson.dumps(instructions)[1:-1]
    if messages.startswith(system):
        return system + text + b"\\n\\n" + messages[len(system) :]
    return b'%s%s"}%s%s' % (system, text, b"," if len(messages) > 2 else b"", messages[1:])


def joined(*conversations: bytes) -> bytes:
    """Join arrays in JSON."""
    return b"[" + b",".join([array[1:-1] for array in conversations if len(array) > 2]) + b"]"


def listed_items(items: bytes, key: str) -> list[dict[str, Any]]:
    """Return input items in JSON as clients list them, the last one first; ids that are missing are made of `key`."""
    listed = []
    for number, item in enumerate(orjson.loads(items)):
        kind = item.get("type", "message")
        full = {"type": kind, "id": f"{kind}_{key}{number:02x}", "status": "completed", **item}
        if kind == "message" and isinstance(item.get("content"), str):
            said = item.get("role") == "assistant"
            part = {"type": "output_text" if said else "input_text", "text": item["content"]}
            full["content"] = [{**part, "annotations": [], "logprobs": []} if said else part]
        listed.append(full)
    return listed[::-1]


class _ItemReader:
    def __init__(self) -> None:
        self._input = ReadInput()
        self._names: dict[str, str] = {}  # of called tools, by the ids of calls

    def conversation(self) -> ReadInput:
        """Return what was read, without turns of the model that are empty."""
        messages = self._input.messages
        self._input.messages = [
            message
            for message in messages
            if message["role"] != "assistant" or message["content"] or message.get("tool_calls")
        ]
        return self._input

    def add(self, item: Any, where: str) -> None:
        """Add one item. Raises InvalidField."""
        if not isinstance(item, dict):
            raise InvalidField(where, f"'{where}' must be an object")
        kind = item.get("type", "message")
        if kind == "message":
            self._add_message(item, where)
        elif kind in ("function_call", "custom_tool_call", "local_shell_call"):
            self._add_call(kind, item, where)
        elif kind in ("function_call_output", "custom_tool_call_output", "local_shell_call_output"):
            self._add_output(item, where)
        elif kind == "reasoning":
            self._add_reasoning(item, where)
        elif kind == "additional_tools":
            self._input.tools += _array(item, "tools", where)
        elif kind == "item_reference":
            text = f"'{where}' refers to the item '{item.get('id')}': send the item itself, or 'previous_response_id'"
            raise InvalidField(where, text)
        elif isinstance(kind, str) and kind in SERVER_ITEMS:
            self._input.ignore(f"input.{kind}")
            return
        else:
            raise InvalidField(f"{where}.type", f"'{where}.type' is not supported: {_shown(kind)}")
        for path in _ITEMS.undecided(item):
            self._input.ignore(path)

    def add_text(self, role: str, text: str | list[dict[str, Any]]) -> None:
        """Add a text, or a text with images, to the last message if that has the same role."""
        messages = self._input.messages
        last = messages[-1] if messages else None
        if last is not None and last["role"] == role:
            # Templates may require that user and assistant take turns, and have one system message.
            last["content"] = join_contents([last["content"], text], "\n\n")
        else:
            messages.append({"role": role, "content": text})

    def _add_message(self, item: Mapping[str, Any], where: str) -> None:
        role = item.get("role")
        if role not in ("user", "assistant", "system", "developer"):
            text = f"'{where}.role' must be one of user, assistant, system, developer, got {_shown(role)}"
            raise InvalidField(f"{where}.role", text)
        content = item.get("content")
        if role == "user" and isinstance(content, list):
            places = [f"{where}.content[{number}]" for number in range(len(content))]
            pieces = [
                _image(part, place) or self._part(part, place) for part, place in zip(content, places, strict=True)
            ]
            self.add_text(role, content_of(pieces, ""))
        else:
            self.add_text("system" if role == "developer" else role, self._text(content, f"{where}.content"))

    def _text(self, content: Any, where: str, *, of_tool: bool = False) -> str:
        if isinstance(content, str):
            return content
        if not isinstance(content, list):
            raise InvalidField(where, f"'{where}' must be a string or an array of parts")
        texts = [self._part(part, f"{where}[{number}]", of_tool=of_tool) for number, part in enumerate(content)]
        return "\n".join(texts) if of_tool else "".join(texts)

    def _part(self, part: Any, where: str, *, of_tool: bool = False) -> str:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in _TEXTS and isinstance(part.get("text"), str):
            return str(part["text"])
        if kind == "refusal" and isinstance(part.get("refusal"), str):
            return str(part["refusal"])
        if kind in ("input_image", "input_file") and of_tool:
            # The result of a tool: a refusal would end the client's session.
            self._input.ignore(f"input.{kind}")
            return f"[{kind.removeprefix('input_')}: not shown, only images of the user are]"
        text = f"'{where}' must be a text, or an image of the user, got {_shown(kind)}"
        raise InvalidField(where, f"{text}: others are not supported by this API")

    def _turn(self) -> dict[str, Any]:
        """Return the message of the model's current turn."""
        messages = self._input.messages
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": ""})
        return messages[-1]

    def _add_call(self, kind: str, item: Mapping[str, Any], where: str) -> None:
        call_id = item.get("call_id") or item.get("id")
        name: Any
        arguments: Any
        if kind == "local_shell_call":
            name, arguments = "local_shell", item.get("action")
        else:
            name = item.get("name")
            arguments = item.get("arguments") or "{}" if kind == "function_call" else {"input": item.get("input")}
        if not isinstance(name, str) or not isinstance(call_id, str):
            raise InvalidField(where, f"'{where}' must have the 'name' of the tool and a 'call_id'")
        if isinstance(arguments, str):
            arguments = arguments_object(arguments)
        name = tool_name(name, item.get("namespace"))
        self._names[call_id] = name
        call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        self._turn().setdefault("tool_calls", []).append(call)

    def _add_output(self, item: Mapping[str, Any], where: str) -> None:
        call_id = item.get("call_id") or item.get("id")
        if not isinstance(call_id, str):
            raise InvalidField(f"{where}.call_id", f"'{where}' must have a 'call_id'")
        output = item.get("output")
        text = self._text(output, f"{where}.output", of_tool=True) if output is not None else ""
        message = {"role": "tool", "content": text, "tool_call_id": call_id}
        if call_id in self._names:
            message["name"] = self._names[call_id]
        self._input.messages.append(message)

    def _add_reasoning(self, item: Mapping[str, Any], where: str) -> None:
        text = _decoded(item.get("encrypted_content"))
        for name in ("content", "summary"):
            if not text and item.get(name):
                text = self._text(item[name], f"{where}.{name}", of_tool=True)
        if text:
            turn = self._turn()
            before = turn.get("reasoning_content")
            turn["reasoning_content"] = f"{before}\n\n{text}" if before else text
        elif item.get("encrypted_content"):
            self._input.ignore("input.encrypted_content")  # of another server


def _image(part: Any, where: str) -> dict[str, Any] | None:
    """Return the image that a part of a message has, None for another part."""
    if not isinstance(part, dict) or part.get("type") != "input_image":
        return None
    if part.get("file_id"):
        raise InvalidField(where, f"'{where}' names a file: send the image as a data URL in 'image_url'")
    return image_part(part.get("image_url"), where)


def _decoded(encrypted: Any) -> str:
    """Return the text of `encrypted_content`; "" if another server has made it."""
    if not isinstance(encrypted, str) or not encrypted.startswith(_REASONING):
        return ""
    try:
        return base64.b64decode(encrypted[len(_REASONING) :], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""


def _array(item: Mapping[str, Any], name: str, where: str) -> Sequence[Any]:
    value = item.get(name)
    if not isinstance(value, list):
        raise InvalidField(f"{where}.{name}", f"'{where}.{name}' must be an array")
    return value


def _shown(value: Any) -> str:
    text = orjson.dumps(value, default=str).decode()
    return text if len(text) <= 80 else text[:80] + "…"
