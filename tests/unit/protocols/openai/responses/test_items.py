"""Items become the messages that a chat template renders; nothing is lost without a word."""

from typing import Any

import orjson
import pytest

from conch.protocols.openai.fields import InvalidField
from conch.protocols.openai.responses.items import (
    encoded_reasoning,
    joined,
    listed_items,
    read_input,
    with_instructions,
)


def test_a_text_is_the_users() -> None:
    assert read_input("hi").messages == [{"role": "user", "content": "hi"}]


def test_a_turn_of_the_model_is_one_message() -> None:
    items = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "weather?"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "a", "name": "weather", "arguments": '{"city": "Rome"}'},
        {"type": "custom_tool_call", "call_id": "b", "name": "patch", "input": "+x"},
        {"type": "function_call_output", "call_id": "a", "output": "rain"},
        {"type": "custom_tool_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "done"}]},
    ]
    system, user, assistant, *tools = read_input(items).messages
    assert system == {"role": "system", "content": "Be brief.\n\nBe kind."}
    assert user == {"role": "user", "content": "weather?"}
    assert assistant == {
        "role": "assistant",
        "content": "I look.",
        "reasoning_content": "hm",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}},
            {"id": "b", "type": "function", "function": {"name": "patch", "arguments": {"input": "+x"}}},
        ],
    }
    assert tools == [
        {"role": "tool", "content": "rain", "tool_call_id": "a", "name": "weather"},
        {"role": "tool", "content": "done", "tool_call_id": "b", "name": "patch"},
    ]


def test_local_shell_calls_and_namespaces_have_names() -> None:
    action = {"type": "exec", "command": ["ls"], "env": {}}
    messages = read_input(
        [
            {"type": "local_shell_call", "id": "l", "call_id": "c", "action": action, "status": "completed"},
            {"type": "local_shell_call_output", "id": "c", "output": "README"},
            {"type": "function_call", "call_id": "d", "name": "spawn", "namespace": "agents", "arguments": ""},
        ]
    ).messages
    assert messages[0]["tool_calls"][0]["function"] == {"name": "local_shell", "arguments": action}
    assert messages[1] == {"role": "tool", "content": "README", "tool_call_id": "c", "name": "local_shell"}
    assert messages[2]["tool_calls"][0]["function"] == {"name": "agents__spawn", "arguments": {}}


def test_reasoning_returns_as_it_was_sent() -> None:
    ours = {"type": "reasoning", "summary": [], "content": None, "encrypted_content": encoded_reasoning("ähm\0")}
    others = {"type": "reasoning", "summary": [], "encrypted_content": "gAAAAAB"}
    after = {"role": "assistant", "content": "so"}
    assert read_input([ours, after]).messages[0]["reasoning_content"] == "ähm\0"
    conversation = read_input([others, after])
    assert conversation.messages == [{"role": "assistant", "content": "so"}]
    assert conversation.ignored == ["input.encrypted_content"]


def test_arguments_that_were_cut_are_still_arguments() -> None:
    call = {"type": "function_call", "call_id": "a", "name": "f", "arguments": '{"city": "Ro'}
    (message,) = read_input([call]).messages
    assert message["tool_calls"][0]["function"]["arguments"] == {"arguments": '{"city": "Ro'}


def test_items_without_an_effect_are_named() -> None:
    conversation = read_input([{"type": "web_search_call", "id": "w"}, {"role": "user", "content": "hi"}])
    assert (conversation.messages, conversation.ignored) == (
        [{"role": "user", "content": "hi"}],
        ["input.web_search_call"],
    )


def test_an_image_of_a_tool_is_a_note_to_the_model() -> None:
    parts = [{"type": "input_text", "text": "here"}, {"type": "input_image", "image_url": "data:image/png;base64,"}]
    conversation = read_input([{"type": "function_call_output", "call_id": "a", "output": parts}])
    assert conversation.messages[0]["content"] == "here\n[image: not shown, only images of the user are]"
    assert conversation.ignored == ["input.input_image"]


def test_tools_may_be_an_item() -> None:
    tool = {"type": "function", "name": "f"}
    items = [{"type": "additional_tools", "role": "developer", "tools": [tool]}, {"role": "user", "content": "hi"}]
    assert read_input(items).tools == [tool]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "you must provide 'input'"),
        ("", "must not be empty"),
        ([], "you must provide 'input'"),
        ([{"type": "web_search_call"}], "'input' has no message"),
        (["hi"], r"'input\[0\]' must be an object"),
        ([{"type": "item_reference", "id": "msg_1"}], "'previous_response_id'"),
        ([{"type": "surprise"}], r"'input\[0\].type' is not supported: \"surprise\""),
        ([{"type": "compaction", "encrypted_content": "x"}], r"is not supported: \"compaction\""),
        ([{"role": "judge", "content": "x"}], r"'input\[0\].role' must be one of"),
        ([{"role": "user", "content": [{"type": "input_file"}]}], r"'input\[0\].content\[0\]' must be a text, or an"),
        ([{"role": "system", "content": [{"type": "input_image"}]}], "must be a text, or an image of the user"),
        ([{"role": "user", "content": 5}], "must be a string or an array"),
        ([{"type": "function_call", "name": "f"}], "a 'call_id'"),
        ([{"type": "function_call_output", "output": "x"}], "must have a 'call_id'"),
        ([{"type": ["list"]}], "is not supported"),
    ],
)
def test_what_cannot_reach_the_model_is_refused(value: Any, words: str) -> None:
    with pytest.raises(InvalidField, match=words):
        read_input(value)


@pytest.mark.parametrize("instructions", ["", 'Be "brief".\n', "ä\0"])
@pytest.mark.parametrize("rest", [[], [{"role": "user", "content": "hi"}]])
@pytest.mark.parametrize("system", ["", "Old"])
def test_instructions_are_the_begin_of_the_system_message(instructions: str, rest: list[Any], system: str) -> None:
    before = [{"role": "system", "content": system}] if system else []
    text = "\n\n".join(filter(None, (instructions, system)))
    wanted = [{"role": "system", "content": text}] if text else []
    assert orjson.loads(with_instructions(orjson.dumps([*before, *rest]), instructions)) == [*wanted, *rest]


def test_conversations_are_joined() -> None:
    assert orjson.loads(joined(b"[]", b"[1,2]", b"[]", b"[3]")) == [1, 2, 3]


def test_listed_items_have_ids_and_parts() -> None:
    items = orjson.dumps([{"role": "user", "content": "hi"}, {"type": "function_call", "id": "fc_1"}])
    assert listed_items(items, "r") == [
        {"type": "function_call", "id": "fc_1", "status": "completed"},
        {
            "type": "message",
            "id": "message_r00",
            "status": "completed",
            "role": "user",
            "content": [{"type": "input_text", "text": "hi"}],
        },
    ]
