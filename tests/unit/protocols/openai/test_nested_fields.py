"""Fields in the messages, items, blocks and tools of a request: those without an effect are named, without indexes."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from conch.domain.tensor import Buffer
from conch.protocols.anthropic.requests import join_message, read_message, split_message
from conch.protocols.ollama import requests as ollama
from conch.protocols.openai.field_rules import ALL_RULES, CHAT, MESSAGES, RESPONSE, FieldRules, rules
from conch.protocols.openai.fields import ReadCall, ignored_header
from conch.protocols.openai.large import split_chat
from conch.protocols.openai.nested_fields import MAX_PATHS, NestedRules
from conch.protocols.openai.requests import read_chat
from conch.protocols.openai.responses.requests import join_response, read_response, split_response
from conch.protocols.openai.text_calls import read_cohere_embed

Read = Callable[[Buffer], ReadCall]
SESSIONS = Path(__file__).parents[3] / "server" / "recorded_sessions"
FUNCTION = {"name": "f", "arguments": "{}", "x": 1}
PARAMETERS = {"type": "object", "properties": {"x": {"x": 1}}}
CHAT_BODY: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "a", "x": 1}], "x": 1},
        {"role": "user", "content": "b", "x": 2, "name": "me"},
        {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "x": 1, "function": FUNCTION}]},
        {"role": "tool", "tool_call_id": "1", "content": "c"},
    ],
    "tools": [{"type": "function", "x": 1, "function": {"name": "f", "parameters": PARAMETERS, "x": 1}}],
    "tool_choice": {"type": "function", "function": {"name": "f", "x": 1}, "x": 1},
}
CHAT_NAMES = [
    "messages[].x",
    "messages[].content[].x",
    "messages[].tool_calls[].x",
    "messages[].tool_calls[].function.x",
    "tools[].x",
    "tools[].function.x",
    "tool_choice.x",
    "tool_choice.function.x",
]
DOCUMENT = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a", "x": 1}}
MESSAGES_BODY = {
    "model": "m",
    "system": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}, "x": 1}],
    "messages": [
        {"role": "user", "content": [DOCUMENT, {"type": "text", "text": "a", "x": 1}], "x": 1},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {"x": 1}}]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "b", "x": 1}]},
                {"type": "text", "text": "a", "citations": {"enabled": False}},
                {"type": "text", "text": "a", "citations": {"enabled": True}},
            ],
        },
    ],
    "tools": [{"name": "f", "input_schema": PARAMETERS, "x": 1}, {"type": "web_search", "name": "w", "max_uses": 1}],
}
MESSAGES_NAMES = [
    "messages[].x",
    "messages[].content[].source.x",
    "messages[].content[].x",
    "messages[].content[].content[].x",
    "messages[].content[].citations",
    "system[].x",
    "tools[].x",
    "tools[].type",
]
INNER = {"type": "function", "name": "g", "x": 1}
RESPONSE_BODY = {
    "model": "m",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "a", "x": 1}], "x": 1},
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "b", "x": 1}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}", "status": "completed"},
        {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "c", "x": 1}]},
        {"type": "web_search_call", "id": "w", "x": 1},
    ],
    "tools": [
        {"type": "function", "name": "f", "parameters": PARAMETERS, "x": 1},
        {"type": "namespace", "name": "n", "tools": [INNER]},
        {"type": "web_search", "x": 1},
    ],
    "tool_choice": {"type": "function", "name": "f", "x": 1},
}
RESPONSE_NAMES = [
    "input[].x",
    "input[].content[].x",
    "input[].summary[].x",
    "input[].output[].x",
    "input.web_search_call",
    "tools[].x",
    "tools[].tools[].x",
    "tool_choice.x",
    "tools.web_search",
]
OLLAMA_BODY = {
    "model": "m",
    "messages": [{"role": "user", "content": "a", "images": [], "x": 1}],
    "tools": [{"type": "function", "function": {"name": "f", "x": 1}}],
}
COHERE_BODY = {"model": "m", "inputs": [{"content": [{"type": "text", "text": "a", "x": 1}], "x": 1}]}


def read_large_chat(body: Buffer) -> ReadCall:
    meta, (rest, messages) = split_chat(body)
    return read_chat(rest, messages, meta["ignored"])


def read_large_message(body: Buffer) -> ReadCall:
    return join_message(*split_message(body))


def read_large_response(body: Buffer) -> ReadCall:
    return join_response(*split_response(body))


def read_large_ollama(body: Buffer) -> ReadCall:
    return ollama.join_chat(*ollama.split_chat(body))


@pytest.mark.parametrize(
    ("read", "body", "names"),
    [
        (read_chat, CHAT_BODY, CHAT_NAMES),
        (read_large_chat, CHAT_BODY, CHAT_NAMES),
        (read_message, MESSAGES_BODY, MESSAGES_NAMES),
        (read_large_message, MESSAGES_BODY, MESSAGES_NAMES),
        (read_response, RESPONSE_BODY, RESPONSE_NAMES),
        (read_large_response, RESPONSE_BODY, RESPONSE_NAMES),
        (ollama.read_chat, OLLAMA_BODY, ["messages[].x", "tools[].function.x"]),
        (read_large_ollama, OLLAMA_BODY, ["messages[].x", "tools[].function.x"]),
        (read_cohere_embed, COHERE_BODY, ["inputs[].x", "inputs[].content[].x"]),
    ],
)
def test_fields_without_an_effect_are_named_at_every_level(
    read: Read, body: dict[str, Any], names: Sequence[str]
) -> None:
    ignored = read(orjson.dumps(body)).ignored
    assert [field.name for field in ignored] == names
    unknown = [field for field in ignored if field.name.endswith("x")]
    assert not any(field.known for field in unknown)
    assert unknown[0].refusal == f"Unrecognized request argument supplied: {unknown[0].name}"
    assert all(field.known for field in ignored if field not in unknown)


@pytest.mark.parametrize(
    ("title", "prefix"),
    [(title, f"{name}.") for title in ALL_RULES for name in ("messages[]", "tools[]", "system[]", "input[]")],
)
def test_the_table_decides_on_each_nested_field(title: str, prefix: str) -> None:
    table = ALL_RULES[title]
    nested = NestedRules(prefix, table)
    for rule in table.values():
        if rule.name.startswith(prefix):
            named = rule.decision == "ignored" and not rule.conditional
            assert nested.undecided(value_at(rule.name, prefix, "surprise")) == ([rule.name] if named else [])
            assert nested.undecided(value_at(rule.name, prefix, None)) == []
            for neutral in rule.neutral:
                assert nested.undecided(value_at(rule.name, prefix, neutral)) == []


def value_at(path: str, prefix: str, value: Any) -> Any:
    """Return what holds a value at a path below the prefix."""
    for name in reversed(path.removeprefix(prefix).split(".")):
        value = {name.removesuffix("[]"): [value] if name.endswith("[]") else value}
    return [value]


@pytest.mark.parametrize("rules_of_api", [CHAT, MESSAGES, RESPONSE])
def test_levels_of_the_table_are_declared(rules_of_api: FieldRules) -> None:
    for name in rules_of_api:
        outer = name.rpartition(".")[0].removesuffix("[]")
        assert outer in rules_of_api or outer in ("input", ""), name


def test_names_are_bounded_in_number_and_length() -> None:
    messages = [{"role": "user", "content": "a", f"{'x' * 100}{number}": 1} for number in range(1000)]
    ignored = read_chat(orjson.dumps({"model": "m", "messages": messages})).ignored
    assert len(ignored) == MAX_PATHS
    assert len(ignored_header(ignored)) < 16 * 70
    items = [{**message, "type": "message"} for message in messages]
    assert len(read_response(orjson.dumps({"model": "m", "input": items})).ignored) == MAX_PATHS


@pytest.mark.parametrize("value", [None, "a", 1, [], [1, "a", None], {"a": [1]}, [{"a": "b"}, {"a": [[{"c": 1}]]}]])
def test_values_of_any_type_are_read(value: Any) -> None:
    nested = NestedRules("a[].", rules(_rules("a a[].a a[].a[].b")))
    assert set(nested.undecided(value)) <= {"a[].c"}


def _rules(names: str) -> list[Any]:
    return [CHAT["model"]._replace(name=name) for name in names.split()]


READERS: dict[str, Read] = {
    "/v1/chat/completions": read_chat,
    "/v1/messages": read_message,
    "/v1/messages/count_tokens": read_message,
    "/v1/responses": read_response,
}


@pytest.mark.parametrize("program", sorted(path.stem for path in SESSIONS.glob("*.json")))
def test_real_programs_send_no_field_that_is_unknown(program: str) -> None:
    document = json.loads((SESSIONS / f"{program}.json").read_text("utf-8"))
    requests = [request for session in document["sessions"].values() for request in session]
    assert requests
    for request in requests:
        body = resolved(request["body"], document["tools"])
        read = READERS[request["path"].partition("?")[0]]
        assert [field.name for field in read(orjson.dumps(body)).ignored if not field.known] == []


def resolved(value: Any, tools: dict[str, Any]) -> Any:
    """Return a recorded body with the tools that it names."""
    if isinstance(value, str):
        return tools.get(value, value)
    if isinstance(value, list):
        return [resolved(element, tools) for element in value]
    return {name: resolved(inner, tools) for name, inner in value.items()} if isinstance(value, dict) else value
