"""Conversations that `/save NAME` keeps and `/load NAME` continues: a file for each, in the user's data."""

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from conch.base.errors import InvalidRequest
from conch.base.files.atomic import replace_file
from conch.base.process.running_servers import user_folder
from conch.base.suggestion import did_you_mean
from conch.base.typed_json import decode

_NAME = re.compile(r"\w[\w.-]{0,99}")


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message. `role` is "user" or "assistant"."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class SavedChat:
    """The messages of a conversation with `model`, and what was set: the system prompt, parameters of the sampling."""

    model: str
    system: str
    settings: dict[str, Any]
    messages: tuple[ChatMessage, ...]


def save_chat(name: str, chat: SavedChat) -> Path:
    """Write a conversation, only for this user, and return its path. Replaces an earlier one of the name.

    Raises InvalidRequest for an invalid name, and if the file cannot be written.
    """
    path = _path(name)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, json.dumps(asdict(chat), indent=1).encode(), 0o600)
    except OSError as error:
        raise InvalidRequest(f"'{path}' cannot be written: {error.strerror or error}") from None
    return path


def load_chat(name: str) -> SavedChat:
    """Read a conversation. Raises InvalidRequest if none has this name, or its file is damaged."""
    path = _path(name)
    try:
        return decode(SavedChat, json.loads(path.read_bytes()))
    except FileNotFoundError:
        names = saved_names()
        kept = f"; saved are {', '.join(names)}" if names else "; /save NAME keeps one"
        raise InvalidRequest(f"'{name}' is not a saved conversation{did_you_mean(name, names, kept)}") from None
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"'{path}' is not a saved conversation: {error}") from None


def saved_names() -> list[str]:
    """Return the names of the saved conversations."""
    return sorted(path.stem for path in _folder().glob("*.json") if _NAME.fullmatch(path.stem))


def _folder() -> Path:
    return user_folder("XDG_DATA_HOME", ".local/share") / "chats"


def _path(name: str) -> Path:
    if not _NAME.fullmatch(name):
        raise InvalidRequest(f"'{name}' is not a valid name: expected letters, digits, '_', '-' and '.'")
    return _folder() / f"{name}.json"
