"""Credentials that clients send: API keys, and URLs, which must have none."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from conch.base.errors import InvalidRequest

VARIABLES = ("CONCH_API_KEY", "OPENAI_API_KEY")
KEY_HELP = f"file with the API key to send (default: the variables {' and '.join(VARIABLES)})"
_MAX_BYTES = 64 * 1024
_CREDENTIALS = re.compile(r"(?<=://)[^/?#\s]*@")
_QUERY = re.compile(r"(?<=://)[^?#\s]*\?([^#\s]+)")


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


def check_no_credentials(url: str) -> None:
    """Raise ValueError, without the credentials in its message, if the URL has some."""
    if _CREDENTIALS.search(url):
        raise ValueError(f"'{_CREDENTIALS.sub('***@', url)}': credentials in URLs are not supported")


def url_secrets(text: str) -> Iterator[str]:
    """Yield the passwords, or user names without one, and the queries of the URLs in a text.

    A name alone may be a token, a query may contain a signature.
    """
    for credentials in _CREDENTIALS.findall(text):
        user, _, password = credentials[:-1].partition(":")
        if password or user:
            yield password or user
    yield from _QUERY.findall(text)


def without_secrets(url: str) -> str:
    """Return a URL without user, password and query, which may contain a signature."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "invalid URL"
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
