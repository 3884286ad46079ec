"""Calls in a model's text, however it is cut into pieces."""

import json
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conch.base.errors import BackendError, ConfigError
from conch.domain.llm.output import Arguments, OutputParser, Part, PlainOutput, Reasoning, ReasoningOutput, ToolCall
from conch.domain.llm.tool_calls import (
    MAX_CALL_CHARACTERS,
    ClientCalls,
    NamedCall,
    call_format,
    call_parser,
    required_calls,
    required_schema,
)

WEATHER = '{"name": "weather", "arguments": {"city": "Köln"}}'


def read(parser: OutputParser, pieces: Sequence[str]) -> list[Part]:
    parts: list[Part] = []
    for piece in pieces:
        parts += parser.feed(piece, False)
    return parts + parser.feed("", True)


def joined(parts: Sequence[Part]) -> tuple[str, str, list[tuple[str, object]]]:
    """Return text, reasoning and calls."""
    content = "".join(part for part in parts if isinstance(part, str))
    reasoning = "".join(part.text for part in parts if isinstance(part, Reasoning))
    calls = [(part[0], json.loads(part[1])) for part in known(parts) if isinstance(part, tuple)]
    return content, reasoning, calls


CALL = ("weather", {"city": "Köln"})
TEXTS = [
    ("hermes", f"<tool_call>\n{WEATHER}\n</tool_call>", "", [CALL]),
    (
        "hermes",
        f"Let me see.\n<tool_call>{WEATHER}</tool_call><tool_call>{WEATHER}</tool_call>",
        "Let me see.",
        [CALL] * 2,
    ),
    ("hermes", f"<tool_call>{WEATHER}", "", [CALL]),  # forgotten
    ("hermes", "a < b and <tool_call>no JSON</tool_call>", "a < b and <tool_call>no JSON</tool_call>", []),
    ("hermes", "nothing to call", "nothing to call", []),
    ("llama3", '{"name": "weather", "parameters": {"city": "Köln"}}', "", [CALL]),
    ("llama3", f"<|python_tag|>{WEATHER}; {WEATHER}", "", [CALL] * 2),
    ("llama3", "It rains {a lot}", "It rains {a lot}", []),
    ("llama3", '{"key": 1}', '{"key": 1}', []),
    ("mistral", f"[TOOL_CALLS][{WEATHER}, {WEATHER}]", "", [CALL] * 2),
    ("mistral", '[TOOL_CALLS]weather{"city": "Köln"}', "", [CALL]),
    ("mistral", "Let me see.[TOOL_CALLS] nothing", "Let me see.[TOOL_CALLS] nothing", []),
    ("mistral", "a [T", "a [T", []),
]


@pytest.mark.parametrize(("form", "text", "content", "calls"), TEXTS)
@settings(max_examples=30)
@given(cuts=st.sets(st.integers(1, 200)))
def test_calls_are_found_wherever_the_text_is_cut(
    form: str, text: str, content: str, calls: list[tuple[str, object]], cuts: set[int]
) -> None:
    places = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    pieces = [text[start:end] for start, end in pairwise(places)]
    assert joined(read(call_parser(form), pieces)) == (content, "", calls)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6)
    | st.sampled_from(["</tool_call>", "{", "}", '"}', "[TOOL_CALLS]", "<think>", ";", "\\", "\ud800", "é😀"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab}{\"", max_size=3), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
CALLS = st.builds(
    lambda name, key, value, ascii_only: json.dumps({"name": name, key: value}, ensure_ascii=ascii_only),
    st.sampled_from(["weather", "f", "\ud800", ""]),
    st.sampled_from(["arguments", "parameters"]),
    VALUES,
    st.booleans(),
)
FRAGMENTS = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "<think>", "</think>", "weather", "[", "]"),
        *(", ", "; ", "\n", " ", "{", "}", '{"name": "cut', "It rains.", "<", "[T", "[ARGS]"),
    ]
)
OUTPUTS = st.lists(FRAGMENTS | CALLS, max_size=7).map("".join)


def parsers() -> dict[str, OutputParser]:
    forms = {form: call_parser(form) for form in ("hermes", "llama3", "mistral")}
    thinking: dict[str, OutputParser] = {
        f"{form} thinking {thinks}": ReasoningOutput(call_parser(form), thinking=thinks)
        for form in forms
        for thinks in (True, False)
    }
    first = ClientCalls(call_parser("hermes"), custom={"f"}, parallel=False)
    whole = ClientCalls(call_parser("mistral"), whole=True)
    return {**forms, **thinking, "named": NamedCall("f"), "required": required_calls(), "first": first, "whole": whole}


@settings(max_examples=150)
@given(OUTPUTS, st.sets(st.integers(1, 120)), st.booleans())
def test_any_output_is_parsed_alike_however_it_is_cut(text: str, cuts: set[int], end_alone: bool) -> None:
    places = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    pieces = [text[start:end] for start, end in pairwise(places)]
    for (name, whole), cut in zip(parsers().items(), parsers().values(), strict=True):
        expected = known(whole.feed(text, True))
        *rest, end = pieces if not end_alone else [*pieces, ""]
        parts = [part for piece in rest for part in cut.feed(piece, False)]
        assert known([*parts, *cut.feed(end, True)]) == expected, name
        for part in expected:
            if isinstance(part, tuple) and name != "named" and not re.search("[\ud800-\udfff]", text):
                orjson.dumps(part)  # it can be sent


def known(parts: Sequence[Part]) -> list[Any]:
    """Return calls without their ids, with all of their arguments, and joined texts."""
    described: list[Any] = []
    for part in parts:
        if isinstance(part, ToolCall):
            described.append((part.name, part.arguments, part.custom))
            continue
        if isinstance(part, Arguments):
            name, arguments, custom = described[-1]
            described[-1] = (name, arguments + part.text, custom)
            continue
        kind, text = ("text", part) if isinstance(part, str) else ("reasoning", part.text)
        last = described[-1] if described else None
        if isinstance(last, list) and last[0] == kind:
            last[1] += text
        else:
            described.append([kind, text])
    return described


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("llama3", '{"name": "\\udfff", "parameters": {}}'),
        ("mistral", '[TOOL_CALLS][{"parameters": {"a": "\\ud800"}, "name": "f"}]'),
        ("hermes", '<tool_call>{"arguments": ' + '{"a":' * 300 + "1" + "}" * 300 + ', "name": "f"}</tool_call>'),
    ],
)
def test_a_call_that_cannot_be_sent_is_text(form: str, text: str) -> None:
    assert known(call_parser(form).feed(text, True)) == [["text", text]]


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("llama3", '{"name": "f", "parameters": %s}'),
        ("mistral", "[TOOL_CALLS]f%s"),
        ("mistral", "[TOOL_CALLS] f[ARGS] %s"),
        ("hermes", '<tool_call>{"name": "f", "arguments": %s}</tool_call>'),
        ("hermes", '<tool_call>{"name":"f","arguments":%s,"id":"}"}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "arguments": %s\n</tool_call>'),  # a brace is missing
    ],
)
@pytest.mark.parametrize(
    "arguments",
    [
        '{"a": "\\ud800"}',
        f'{{"a": {10**40}}}',
        '{"a":' * 300 + "1" + "}" * 300,
        '{"a": no}',
        '{"}": "</tool_call>\\""}',
    ],
)
@pytest.mark.parametrize("whole", [False, True])
def test_arguments_are_those_that_the_model_writes(form: str, text: str, arguments: str, whole: bool) -> None:
    parser = ClientCalls(call_parser(form), whole=whole)
    assert known(parser.feed(text % arguments, True)) == [("f", arguments, False)]


@pytest.mark.parametrize(
    ("form", "begin"),
    [
        ("hermes", 'Well. <tool_call>{"name": "f", "arguments": '),
        ("llama3", '<|python_tag|>{"name": "f", "parameters": '),
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": '),
        ("mistral", "[TOOL_CALLS]f"),
    ],
)
def test_arguments_come_while_they_are_generated(form: str, begin: str) -> None:
    parser, whole = call_parser(form), ClientCalls(call_parser(form), whole=True)
    parser.feed(begin, False)
    text = whole.feed(begin, False)
    (call, first) = parser.feed('{"a": [', False)
    assert isinstance(call, ToolCall)
    assert first == Arguments('{"a": [', last=False)
    assert parser.feed("1]", False) == [Arguments("1]", last=False)]
    assert parser.feed("}", False) == [Arguments("}", last=True)]
    # Without pieces, a call that is cut is text.
    assert whole.feed('{"a": [', False) == []
    assert "".join(str(part) for part in [*text, *whole.feed("1]", True)]) == begin + '{"a": [1]'


def test_what_follows_the_only_call_is_not_wanted() -> None:
    parser = ClientCalls(call_parser("hermes"), parallel=False)
    parts = parser.feed(f"<tool_call>{WEATHER[:-2]}", False)
    assert not parser.complete
    parts += parser.feed(WEATHER[-2:] + "</tool_call> More.", False)
    assert parser.complete
    assert known([*parts, *parser.feed(f"<tool_call>{WEATHER}</tool_call>", True)]) == [
        ("weather", '{"city": "Köln"}', False)
    ]


def test_long_calls_are_bounded() -> None:
    piece = "x" * (1 << 16)
    for form, mark in (("hermes", "<tool_call>"), ("llama3", "{"), ("mistral", "[TOOL_CALLS]")):
        parser = call_parser(form)
        parts = parser.feed(mark, False)
        for _ in range(MAX_CALL_CHARACTERS // len(piece)):
            parts += parser.feed(piece, False)
        assert known(parts) == [["text", mark + "x" * MAX_CALL_CHARACTERS]]
    required = required_calls()
    required.feed('[{"name": "f", "arguments": {', False)
    for chosen in (NamedCall("f"), required):
        for _ in range(MAX_CALL_CHARACTERS // len(piece) - 1):
            assert chosen.feed(piece, False)
        chosen.feed(piece[1:], False)
        chosen.feed("x" if chosen is not required else "", False)
        with pytest.raises(BackendError, match="tool call exceeds the maximum of 1048576 characters"):
            chosen.feed("x", False)


def test_calls_as_the_client_asks_for_them() -> None:
    two = (
        f'<tool_call>{{"name": "f", "arguments": {{"input": "print(1)"}}}}</tool_call><tool_call>{WEATHER}</tool_call>'
    )
    custom = ClientCalls(call_parser("hermes"), custom={"f"}, parallel=True)
    assert known(custom.feed(two, True)) == [("f", "print(1)", True), ("weather", '{"city": "Köln"}', False)]
    first = ClientCalls(call_parser("hermes"), custom=(), parallel=False)
    assert known(first.feed(two, True)) == [("f", '{"input": "print(1)"}', False)]
    cut = ClientCalls(NamedCall("f"), custom={"f"}, parallel=True)
    assert known(cut.feed('{"input": "pri', True)) == [("f", '{"input": "pri', True)]


def test_text_before_a_call_is_returned_immediately() -> None:
    parser = call_parser("hermes")
    assert parser.feed("Wait <", False) == ["Wait"]
    assert parser.feed("b", False) == [" <b"]


def test_ids_are_unique() -> None:
    parts = read(call_parser("hermes"), [f"<tool_call>{WEATHER}</tool_call>" * 3])
    ids = [part.id for part in parts if isinstance(part, ToolCall)]
    assert len(set(ids)) == 3
    assert all(len(token_id) == 9 and token_id.isalnum() for token_id in ids)


def test_a_choice_of_the_client_makes_all_of_the_text_a_call() -> None:
    assert joined(read(NamedCall("weather"), ['{"city":', ' "Köln"}'])) == ("", "", [CALL])
    assert joined(read(required_calls(), ["[", WEATHER, "]"])) == ("", "", [CALL])
    whole = ClientCalls(required_calls(), whole=True)
    assert joined(read(whole, ["[", WEATHER[:-3]])) == ("[" + WEATHER[:-3], "", [])


def test_the_schema_of_required_calls_names_the_tools() -> None:
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
    schema = json.loads(required_schema([tool]))
    assert schema["items"]["anyOf"][0]["properties"]["name"] == {"const": "weather"}
    assert schema["minItems"] == 1


@pytest.mark.parametrize(
    ("template", "form"),
    [("… <tool_call> …", "hermes"), ("[TOOL_CALLS]", "mistral"), ("<|python_tag|>", "llama3"), ("plain", "")],
)
def test_the_template_shows_the_form(template: str, form: str) -> None:
    assert call_format(template) == form


def test_an_unknown_form_is_named() -> None:
    with pytest.raises(ConfigError, match="tool_call_parser 'x' is unknown; known: hermes, llama3, mistral"):
        call_parser("x")


REASONING = [
    (False, "<think>Hm.</think>\n\nYes.", "Yes.", "Hm."),
    (True, "Hm.</think>Yes.", "Yes.", "Hm."),
    (False, "Yes, <think> is a tag.", "Yes, <think> is a tag.", ""),
    (False, "<think>cut sho", "", "cut sho"),
    (True, "cut sho", "", "cut sho"),
    (False, "<thi", "<thi", ""),  # codespell:ignore
    (False, "", "", ""),
]


@pytest.mark.parametrize(("thinking", "text", "content", "reasoning"), REASONING)
@settings(max_examples=30)
@given(cuts=st.sets(st.integers(1, 40)))
def test_reasoning_is_separated(thinking: bool, text: str, content: str, reasoning: str, cuts: set[int]) -> None:
    places = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    pieces = [text[start:end] for start, end in pairwise(places)]
    assert joined(read(ReasoningOutput(PlainOutput(), thinking=thinking), pieces)) == (content, reasoning, [])


def test_a_call_may_follow_the_reasoning() -> None:
    parser = ReasoningOutput(call_parser("hermes"), thinking=False)
    parts = read(parser, ["<think>I should look.</think>", f"<tool_call>{WEATHER}</tool_call>"])
    assert joined(parts) == ("", "I should look.", [CALL])
