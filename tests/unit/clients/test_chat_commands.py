"""The commands of a conversation in the terminal."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from conch.base.errors import InvalidRequest
from conch.clients.chat_commands import EndOfChat, command_answer


@dataclass
class Talk:
    model: str = "words"
    system: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    context_used: int = 12
    context_limit: int = 4096
    turns: int = 2

    def clear(self) -> None:
        self.turns = self.context_used = 0


def test_settings_are_set_with_and_without_the_word_parameter() -> None:
    talk = Talk()
    assert command_answer(talk, "/set temperature 0.5") == "temperature is 0.5"
    command_answer(talk, "/set parameter max_tokens 7")
    assert command_answer(talk, "/set parameter num_predict 8") == "max_tokens is 8"
    command_answer(talk, '/set system "Be brief."')
    assert (talk.settings, talk.system) == ({"temperature": 0.5, "max_tokens": 8}, "Be brief.")
    assert command_answer(talk, "/set system") == "the system prompt is removed"


def test_show_has_model_context_and_settings() -> None:
    shown = command_answer(Talk(settings={"seed": 3}, system="Be brief."), "/show")
    assert shown.splitlines() == [
        "model        words",
        "context      12 of 4096 tokens, 2 messages",
        "seed         3",
        "system       Be brief.",
    ]


def test_clear_forgets_the_messages() -> None:
    talk = Talk()
    command_answer(talk, "/clear")
    assert (talk.turns, talk.context_used) == (0, 0)


@pytest.mark.parametrize("text", ["/bye", "/exit"])
def test_bye_ends_the_conversation(text: str) -> None:
    with pytest.raises(EndOfChat):
        command_answer(Talk(), text)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("/set temperature hot", "'hot' is not a valid temperature: expected a number"),
        ("/set stop", "'' is not a valid stop: expected a text"),
        ("/set seed 1.5", "'1.5' is not a valid seed: expected an integer"),
        ("/set colour red", "/set takes temperature, top_p, top_k, max_tokens, stop, seed or system"),
        ("/sho", "unknown command '/sho'; did you mean '/show'?"),
    ],
)
def test_invalid_commands_say_what_is_valid(text: str, complaint: str) -> None:
    with pytest.raises(InvalidRequest, match="^" + complaint.replace("?", r"\?")):
        command_answer(Talk(), text)
