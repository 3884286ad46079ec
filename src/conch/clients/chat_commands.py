"""The commands of a chat in the terminal: `/set`, `/show`, `/save` and others."""

from collections.abc import Callable
from typing import Any

from conch.base.control_characters import printable
from conch.base.errors import InvalidRequest
from conch.base.suggestion import did_you_mean
from conch.clients.saved_chats import load_chat, save_chat, saved_names
from conch.clients.terminal_chat import TerminalChat

_HELP = '''\
/set temperature 0.2     also top_p, top_k, max_tokens, stop, seed
/set system TEXT         system prompt; without TEXT, none
/set nohistory           keep what follows out of the history; /set history keeps it
/show                    model, settings, context used
/clear                   forget the messages
/save NAME               keep messages, system prompt and settings
/load NAME               continue a kept conversation; without NAME, list them
/bye                     end the conversation
"""                      begins and ends a message of several lines'''


def _stop(text: str) -> str:
    if not text:
        raise ValueError
    return text


# Setting → how its value is read.
_SETTINGS: dict[str, Callable[[str], Any]] = {
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "max_tokens": int,
    "stop": _stop,
    "seed": int,
}
_OTHER_NAMES = {"num_predict": "max_tokens"}  # Ollama's
_HISTORY = {"history": True, "nohistory": False}
_COMMANDS = ("/set", "/show", "/clear", "/save", "/load", "/help", "/bye")


class EndOfChat(Exception):
    """The user ends the conversation."""


def command_answer(conversation: TerminalChat, text: str) -> str:
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
    if name == "/save":
        return _save(conversation, rest.strip())
    if name == "/load":
        return _load(conversation, rest.strip())
    raise InvalidRequest(f"unknown command '{name}'{did_you_mean(name, _COMMANDS)}; /help lists the commands")


def _set(conversation: TerminalChat, assignment: str) -> str:
    name, _, text = assignment.partition(" ")
    name, text = _OTHER_NAMES.get(name, name), text.strip()
    if name == "system":
        conversation.system = text.strip('"')
        return "the system prompt is set" if text else "the system prompt is removed"
    if name in _HISTORY and not text:
        conversation.keeps_history = _HISTORY[name]
        return f"what you type is {'kept' if _HISTORY[name] else 'not kept'} for the arrow keys"
    if name not in _SETTINGS:
        raise InvalidRequest(f"/set takes {', '.join(_SETTINGS)} or system, and a value, such as /set temperature 0.2")
    try:
        conversation.settings[name] = _SETTINGS[name](text)
    except ValueError:
        kind = {"stop": "a text", "temperature": "a number", "top_p": "a number"}.get(name, "an integer")
        raise InvalidRequest(f"'{text}' is not a valid {name}: expected {kind}") from None
    return f"{name} is {conversation.settings[name]}"


def _shown(conversation: TerminalChat) -> str:
    limit = f" of {conversation.context_limit}" if conversation.context_limit else ""
    lines = [
        f"model        {conversation.model}",
        f"context      {conversation.context_used}{limit} tokens, {conversation.turns} messages",
        *(f"{name:<12} {value}" for name, value in conversation.settings.items()),
    ]
    if conversation.system:
        lines.append(f"system       {conversation.system}")
    return "\n".join(lines)


def _save(conversation: TerminalChat, name: str) -> str:
    if not name:
        raise InvalidRequest("/save takes a name, such as /save plans")
    path = save_chat(name, conversation.saved())
    return f"saved {conversation.turns} messages to {path}"


def _load(conversation: TerminalChat, name: str) -> str:
    if not name:
        return "\n".join(saved_names()) or "no conversation is saved; /save NAME keeps one"
    chat = load_chat(name)
    conversation.resume(chat)
    other = f", which '{printable(chat.model)}' answered" if chat.model != conversation.model else ""
    return f"loaded {conversation.turns} messages{other}"
