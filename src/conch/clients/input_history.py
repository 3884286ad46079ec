"""What a user has typed in chats: kept for the arrow keys, in a file also of later chats.

Each line of the file is one message as a JSON string. Chats append to it, so that several at once lose nothing.
"""

import json
import os
from contextlib import suppress

from conch.base.files.atomic import replace_file
from conch.base.process.running_servers import temporary_folder, user_folder

_MAX_MESSAGES = 1000
_MAX_BYTES = 1 << 16  # of a message in the file: a pasted document is not kept
_MODE = 0o600


class InputHistory:
    """The history of the line editor. Without a home, or with one that cannot be written, it ends with the chat."""

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
