"""The API key that the commands that are clients send."""

import os
from pathlib import Path

from conch.errors import InvalidRequest

VARIABLES = ("CONCH_API_KEY", "OPENAI_API_KEY")
KEY_HELP = f"file with the API key to send (default: the variables {' and '.join(VARIABLES)})"
_MAX_BYTES = 64 * 1024


def client_key(file: str | None) -> str:
    """Return the key of a file, else of the environment, "" for none.

    The key is the first line that is neither blank nor a comment: alone, or behind name and scopes as in the file of
    the server. Raises InvalidRequest for a file without one.
    """
    if not file:
        return next((os.environ[name] for name in VARIABLES if os.environ.get(name)), "")
    try:
        with Path(file).open(encoding="utf-8") as opened:
            lines = opened.read(_MAX_BYTES).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidRequest(f"--api-key-file: '{file}' cannot be read: {reason}") from None
    for line in lines:
        key = line.strip()
        if key and not key.startswith("#"):
            words = key.split()
            if len(words) not in (1, 3) or not (key.isascii() and key.isprintable()):
                raise InvalidRequest(f"--api-key-file: a line of '{file}' is neither a key nor name, scopes and key")
            return words[-1]
    raise InvalidRequest(f"--api-key-file: '{file}' has no key in it")
