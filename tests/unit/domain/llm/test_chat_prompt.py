"""Tools and calls as text, for chat templates that support neither."""

from typing import Any

from conch.domain.llm.chat_prompt import with_system_in_user, with_tools, without_calls

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
