"""The commands of a conversation in the terminal: /set, /show, /clear, /help and /bye."""

from collections.abc import Callable
from typing import Any, Protocol

from conch.base.errors import InvalidRequest
from conch.base.suggestion import did_you_mean

_HELP = '''\
/set temperature 0.2     sampling temperature; also max_tokens, seed, top_p
/set system TEXT         system prompt; without TEXT, none
/show                    model, settings, context used
/clear                   forget the messages
/bye                     end the conversation
"""                      begins and ends a message of several lines'''
# Setting → how its value is read.
_SETTINGS: dict[str, Callable[[str], Any]] = {"temperature": float, "top_p": float, "max_tokens": int, "seed": int}
_COMMANDS = ("/set", "/show", "/clear", "/help", "/bye")


class EndOfChat(Exception):
    """The user ends the conversation."""


class Conversed(Protocol):
    """The conversation that commands change."""

    model: str
    system: str
    settings: dict[str, Any]
    context_used: int
    context_limit: int

    @property
    def turns(self) -> int:
        """How many messages the model gets."""

    def clear(self) -> None:
        """Forget the messages."""


def command_answer(conversation: Conversed, text: str) -> str:
    """Execute a command; return what to print. Raises InvalidRequest for an invalid one, EndOfChat."""
    name, _, rest = text.partition(" ")
    if name in ("/bye", "/exit", "/quit"):
        raise EndOfChat
    if name in ("/help", "/?"):
        return _HELP
    if name == "/clear":
        conversation.clear()
        return "the conversation is empty"
    if name == "/show":
        return _shown(conversation)
    if name == "/set":
        return _set(conversation, rest.strip().removeprefix("parameter ").strip())
    raise InvalidRequest(f"unknown command '{name}'{did_you_mean(name, _COMMANDS)}; /help lists the commands")


def _set(conversation: Conversed, assignment: str) -> str:
    name, _, text = assignment.partition(" ")
    text = text.strip()
    if name == "system":
        conversation.system = text.strip('"')
        return "the system prompt is set" if text else "the system prompt is removed"
    if name not in _SETTINGS:
        raise InvalidRequest(f"/set takes {', '.join(_SETTINGS)} or system, and a value, such as /set temperature 0.2")
    try:
        conversation.settings[name] = _SETTINGS[name](text)
    except ValueError:
        kind = "an integer" if _SETTINGS[name] is int else "a number"
        raise InvalidRequest(f"'{text}' is not a valid {name}: expected {kind}") from None
    return f"{name} is {conversation.settings[name]}"


def _shown(conversation: Conversed) -> str:
    limit = f" of {conversation.context_limit}" if conversation.context_limit else ""
    lines = [
        f"model        {conversation.model}",
        f"context      {conversation.context_used}{limit} tokens, {conversation.turns} messages",
        *(f"{name:<12} {value}" for name, value in conversation.settings.items()),
    ]
    if conversation.system:
        lines.append(f"system       {conversation.system}")
    return "\n".join(lines)
