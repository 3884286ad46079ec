"""What chats keep in files: conversations that `/save NAME` keeps and `/load NAME` continues, and what users type."""

import json
import os
import re
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from conch.base.errors import InvalidRequest
from conch.base.files.atomic import replace_file
from conch.base.process.running_servers import temporary_folder, user_folder
from conch.base.suggestion import did_you_mean
from conch.base.typed_json import decode

_MAX_MESSAGES = 1000  # of the history
_MAX_BYTES = 1 << 16  # of a message in it: a pasted document is not kept
_MODE = 0o600
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


class InputHistory:
    """What a user has typed, for the arrow keys: the history of the line editor, in a file also of later chats.

    Each line of the file is one message as a JSON string. Chats append to it, so that several at once lose nothing.
    Without a home, or with one that cannot be written, the history ends with the chat.
    """

    def __init__(self) -> None:
        folder = user_folder("XDG_STATE_HOME", ".local/state")
        # Other users can write into the folder of temporary files.
        self._path = None if folder == temporary_folder() else folder / "chat_history"
        self._last = ""

    def start(self) -> None:
        """Give the line editor the messages of earlier chats."""
        import readline

        readline.set_auto_history(False)
        for message in self._read():
            self._last = message
            with suppress(ValueError):  # the terminal's encoding lacks a character
                readline.add_history(message)

    def add(self, message: str) -> None:
        """Add a message, unless it repeats the one before."""
        import readline

        if message == self._last:
            return
        self._last = message
        with suppress(ValueError):
            readline.add_history(message)
        line = f"{json.dumps(message)}\n".encode()
        if self._path is None or len(line) > _MAX_BYTES:
            return
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _MODE)
            try:
                os.write(descriptor, line)
            finally:
                os.close(descriptor)
        except OSError:  # a home that cannot be written, a full disk
            self._path = None

    def _read(self) -> list[str]:
        """Return the messages of earlier chats, the oldest first. A file that has grown is shortened."""
        if self._path is None:
            return []
        try:
            lines = self._path.read_bytes().splitlines(keepends=True)
        except OSError:
            return []
        if len(lines) > 2 * _MAX_MESSAGES:
            with suppress(OSError):
                replace_file(self._path, b"".join(lines[-_MAX_MESSAGES:]), _MODE)
        messages = []
        for line in lines[-_MAX_MESSAGES:]:
            with suppress(ValueError):  # damaged by hand or by a full disk
                message = json.loads(line)
                if isinstance(message, str):
                    messages.append(message)
        return messages
