"""Any body of the Responses API is decoded or refused with a reason."""

from contextlib import suppress
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conch.base.errors import ConchError
from conch.domain.generation import StructuredOutput
from conch.protocols.openai.responses.requests import ResponseCall, join_response, read_response, split_response
from tests.unit.protocols.openai.test_requests import ANYTHING

WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": True}
PATCH = {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: X"}}
AGENTS = {"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "spawn"}]}
ASKED = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
NAMES = (
    *("instructions", "tools", "tool_choice", "text", "reasoning", "include", "store", "metadata", "truncation"),
    *("max_output_tokens", "previous_response_id", "background", "conversation", "stream", "stream_options", "user"),
    *("temperature", "top_p", "top_logprobs", "parallel_tool_calls", "prompt", "n", "input", "service_tier"),
)


def read(**fields: Any) -> ResponseCall:
    return read_response(orjson.dumps({"model": "m", "input": "hi", **fields}))


@given(st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=8), ANYTHING, max_size=4))
def test_any_body_is_read_or_refused(fields: dict[str, Any]) -> None:
    with suppress(ConchError):
        read(**fields)


@given(ANYTHING)
def test_any_input_is_read_or_refused(value: Any) -> None:
    with suppress(ConchError):
        read(input=[{"type": "message", "role": "user", "content": value}, value])


@given(st.dictionaries(st.sampled_from(NAMES), ANYTHING, max_size=3))
def test_a_worker_reads_the_same(fields: dict[str, Any]) -> None:
    body = orjson.dumps({"model": "m", "input": "hi", **fields})
    with suppress(ConchError):
        assert join_response(*split_response(body)) == read_response(body)


def test_fields_of_both_apis_mean_the_same() -> None:
    call = read(
        temperature=0.5,
        top_p=0.9,
        max_output_tokens=7,
        seed=3,
        parallel_tool_calls=False,
        reasoning={"effort": "high", "summary": "auto"},
        include=["reasoning.encrypted_content", "message.output_text.logprobs"],
        top_logprobs=2,
        stream=True,
    )
    params = call.params
    assert (params.temperature, params.top_p, params.max_tokens, params.seed) == (0.5, 0.9, 7, 3)
    assert (params.logprobs, call.stream, call.parallel_tool_calls) == (2, True, False)
    assert call.template_arguments == {"reasoning_effort": "high"}
    off = read(reasoning={"effort": "none"}, chat_template_kwargs={"a": 1})
    assert off.template_arguments == {"reasoning_effort": "none", "enable_thinking": False, "a": 1}
    assert (call.summarizes, call.encrypts) == (True, True)
    assert call.repeated["reasoning"] == {"effort": "high", "summary": "auto"}


def test_tools_are_functions_to_the_model() -> None:
    call = read(tools=[WEATHER, PATCH, AGENTS, {"type": "web_search"}])
    assert [tool["function"]["name"] for tool in call.tools] == ["weather", "patch", "agents__spawn"]
    assert call.tools[1]["function"]["parameters"]["required"] == ["input"]
    assert "start: X" in call.tools[1]["function"]["description"]
    assert call.by_name == {
        "weather": ("weather", None),
        "patch": ("patch", None),
        "agents__spawn": ("spawn", "agents"),
    }
    assert call.custom_tools == {"patch"}
    assert [tool["type"] for tool in call.repeated["tools"]] == ["function", "custom", "namespace"]
    assert [field.name for field in call.ignored] == [
        "tools[].strict",
        "tools.web_search",
        "tools[].custom.format",
    ]


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        (None, "auto"),
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ({"type": "function", "name": "weather"}, {"name": "weather"}),
        ({"type": "custom", "name": "patch"}, {"name": "patch"}),
        ({"type": "function", "name": "spawn", "namespace": "agents"}, {"name": "agents__spawn"}),
    ],
)
def test_choices_of_tools(choice: Any, wanted: Any) -> None:
    call = read(tools=[WEATHER, PATCH, AGENTS], tool_choice=choice)
    assert call.tool_choice == wanted


def test_allowed_tools_are_the_only_ones() -> None:
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]}
    call = read(tools=[WEATHER, PATCH], tool_choice=allowed)
    assert ([tool["function"]["name"] for tool in call.tools], call.tool_choice) == (["weather"], "required")


def test_formats_of_texts() -> None:
    named = {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}
    assert read(text={"format": named}).params.structured == StructuredOutput("json", orjson.dumps(SCHEMA).decode())
    assert read(text={"format": {"type": "json_object"}}).params.structured == StructuredOutput("json_object")
    call = read(text={"format": {"type": "text"}, "verbosity": "low"})
    assert (call.params.structured, [field.name for field in call.ignored]) == (None, ["text.verbosity"])


def test_fields_without_an_effect_are_named() -> None:
    call = read(truncation="auto", surprise=1, tools=[{"type": "a\r\nb"}], reasoning={"mode": "pro"}, n=1)
    shown = [(field.shown, field.known) for field in call.ignored]
    assert shown == [
        ("truncation", True),
        ("reasoning.mode", True),
        ("tools.a??b", False),
        ("surprise", False),
    ]


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"background": True}, "background", "'background' is not supported"),
        ({"conversation": "conv_1"}, "conversation", "'conversation' is not supported"),
        ({"prompt": {"id": "p"}}, "prompt", "'prompt' is not supported"),
        ({"input": None}, "input", "you must provide 'input'"),
        ({"n": 2}, "n", "there is one answer"),
        ({"max_tokens": 2}, "max_tokens", "use 'max_output_tokens'"),
        ({"messages": [{}]}, "messages", "send 'input'"),
        ({"max_output_tokens": 0}, "max_output_tokens", "max_output_tokens must be at least 1"),
        ({"max_output_tokens": "x"}, "max_output_tokens", "must be an integer"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", "'text.format.type' must be"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema", "must hold a 'schema'"),
        ({"tools": ["x"]}, "tools[0]", "must be an object with a 'type'"),
        ({"tools": [{"type": "function"}]}, "tools[0]", "with a 'name'"),
        ({"tool_choice": "required"}, "tool_choice", "no functions"),
        ({"tool_choice": {"type": "web_search"}, "tools": [WEATHER]}, "tool_choice", "does not have"),
        ({"tool_choice": "perhaps"}, "tool_choice", "must be none, auto, required"),
        ({"tool_choice": {"type": "allowed_tools", "tools": 5}, "tools": [WEATHER]}, "tool_choice", "does not have"),
        ({"tools": 5, "input": [{"type": "additional_tools", "tools": [WEATHER]}, ASKED]}, "tools", "must be an array"),
        ({"reasoning": {"effort": "none"}, "chat_template_kwargs": 5}, "chat_template_kwargs", "must be an object"),
        ({"metadata": {"a": 1}}, "metadata", "at most 16 texts"),
        ({"temperature": -1}, "temperature", "temperature must be"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(ConchError, match=words) as raised:
        read(**fields)
    assert getattr(raised.value, "param", None) == param
