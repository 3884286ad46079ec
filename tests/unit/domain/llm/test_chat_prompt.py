"""Tools and calls as text, for chat templates that support neither."""

import tracemalloc
from typing import Any

import pytest

from conch.base.errors import ConfigError, InvalidRequest
from conch.domain.llm.chat_prompt import ChatTemplate, with_system_in_user, with_tools, without_calls

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
USER: dict[str, Any] = {"role": "user", "content": "Rome?"}
SYSTEM: dict[str, Any] = {"role": "system", "content": "Be brief."}
CALL: dict[str, Any] = {
    "role": "assistant",
    "content": "Let me see.",
    "tool_calls": [{"id": "1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}}],
}
RESULTS: list[dict[str, Any]] = [
    {"role": "tool", "tool_call_id": "1", "content": "rain"},
    {"role": "tool", "tool_call_id": "2", "content": "wind"},
]


def test_a_system_message_describes_the_tools() -> None:
    system, user = with_tools([USER], [TOOL])
    assert (system["role"], user) == ("system", USER)
    assert '{"type":"function","function":{"name":"weather"' in system["content"]
    (merged,) = with_tools([SYSTEM], [TOOL])
    assert merged["content"].startswith("Be brief.\n\n# Tools")


def test_calls_and_results_become_text() -> None:
    user, call, results, again = without_calls([USER, CALL, *RESULTS, USER])
    assert (user, again) == (USER, USER)
    assert call == {
        "role": "assistant",
        "content": 'Let me see.\n<tool_call>\n{"name":"weather","arguments":{"city":"Rome"}}\n</tool_call>',
    }
    assert results == {
        "role": "user",
        "content": "<tool_response>\nrain\n</tool_response>\n<tool_response>\nwind\n</tool_response>",
    }
    assert without_calls([USER, *RESULTS])[-1] == results


def test_a_system_message_may_begin_that_of_the_user() -> None:
    assert with_system_in_user([SYSTEM, USER, CALL]) == [{"role": "user", "content": "Be brief.\n\nRome?"}, CALL]
    assert with_system_in_user([SYSTEM]) == [{"role": "user", "content": "Be brief."}]
    assert with_system_in_user([USER]) == [USER]


IMAGE = {"type": "image"}
PARTS = "{% for part in message.content %}{{ '<|image|>' if part.type == 'image' else part.text }}{% endfor %}"
TEXT_OR_PARTS = "{% if message.content is string %}{{ message.content }}{% else %}" + PARTS + "{% endif %}"
SEEN: list[dict[str, Any]] = [
    SYSTEM,
    {"role": "user", "content": [{"type": "text", "text": "See "}, IMAGE, {"type": "text", "text": "and"}, IMAGE]},
    {"role": "assistant", "content": "A cat"},
]


@pytest.mark.parametrize(
    ("content", "prompt"),
    [
        (TEXT_OR_PARTS, "<Be brief.><See <|image|>and<|image|>><A cat>"),
        (PARTS, "<Be brief.><See <|image|>and<|image|>><A cat>"),  # it would leave out texts
        ("{{ message.content }}", "<Be brief.><IMG1\nIMG2\nSee \nand><A cat>"),
        ("{{ message.content | trim }}", "<Be brief.><IMG1\nIMG2\nSee \nand><A cat>"),
        ("{{ message.content + '' }}", "<Be brief.><IMG1\nIMG2\nSee \nand><A cat>"),
        ("{{ message.content | tojson }}", '<"Be brief."><"IMG1\\nIMG2\\nSee \\nand"><"A cat">'),
    ],
)
def test_images_are_parts_or_placeholders(content: str, prompt: str) -> None:
    template = ChatTemplate("{% for message in messages %}<" + content + ">{% endfor %}", {})
    assert template.render(SEEN, placeholders=["IMG1", "IMG2", "IMG3"]) == prompt
    continued = template.render(SEEN, placeholders=["IMG1", "IMG2"], continue_final_message=True)
    assert continued == prompt[: prompt.rindex("A cat") + len("A cat")]


def test_a_system_message_may_begin_one_with_images() -> None:
    (user, _) = with_system_in_user(SEEN)
    assert user["content"][0] == {"type": "text", "text": "Be brief.\n\nSee "}
    assert user["content"][1:] == SEEN[1]["content"][1:]


@pytest.mark.parametrize(
    "template",
    ["{{ 'a' * 10**8 }}", "{% if 'a'|center(10**8) %}{% endif %}", "{% set x = '%100000000d'|format(1) %}{{ x }}"],
)
def test_nothing_is_computed_when_a_template_is_compiled(template: str) -> None:
    tracemalloc.start()
    try:
        ChatTemplate(template, {})
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def test_a_template_that_is_nested_deeply_is_refused() -> None:
    with pytest.raises(ConfigError, match="nested too deeply"):
        ChatTemplate("{% if a %}" * 3000 + "{% endif %}" * 3000, {})


def test_the_error_of_a_template_is_bounded() -> None:
    with pytest.raises(InvalidRequest) as refused:
        ChatTemplate("{{ raise_exception('x' * 10**7) }}", {}).render([USER])
    assert len(refused.value.message) == 16_384
