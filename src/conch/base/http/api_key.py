"""The API key that a client sends: of a file, or of the environment."""

import os
from pathlib import Path

from conch.base.errors import InvalidRequest

VARIABLES = ("CONCH_API_KEY", "OPENAI_API_KEY")
KEY_HELP = f"file with the API key to send (default: the variables {' and '.join(VARIABLES)})"
_MAX_BYTES = 64 * 1024


def client_key(file: str | None) -> str:
    """Return the key from a file, or else from the environment, "" for none.

    The key is on the first line that is not blank or a comment: alone, or after name and scopes as in the server's key
    file. Raises InvalidRequest for a file without a key.
    """
    if not file:
        return next((os.environ[name] for name in VARIABLES if os.environ.get(name)), "")
    try:
        with Path(file).open(encoding="utf-8") as opened:
            lines = opened.read(_MAX_BYTES).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise InvalidRequest(f"--api-key-file: '{file}' cannot be read: {reason}") from None
    for line in lines:
        key = line.strip()
        if key and not key.startswith("#"):
            fields = key.split()
            if len(fields) not in (1, 3) or not (key.isascii() and key.isprintable()):
                raise InvalidRequest(f"--api-key-file: a line of '{file}' is neither a key nor name, scopes and key")
            return fields[-1]
    raise InvalidRequest(f"--api-key-file: '{file}' contains no key")
