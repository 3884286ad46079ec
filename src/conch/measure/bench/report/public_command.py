"""Command lines and URLs without their secrets, for documents that are passed on."""

import shlex
from collections.abc import Sequence
from urllib.parse import urlsplit, urlunsplit

HIDDEN = "***"
_SECRET_WORDS = ("key", "token", "password", "secret", "authorization", "credential")
# Flags whose names have such a word but hold paths or numbers.
_PUBLIC_ENDINGS = ("-file", "-tokens", "-length", "-path")
_HEADER_FLAGS = ("--header", "-H")


def public_command(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return a command line without values of secret flags, values of headers and credentials in URLs."""
    words = []
    flag = ""
    for word in arguments:
        name, equals, value = word.partition("=")
        if word.startswith("-") and not equals:
            flag = word
            words.append(word)
        elif word.startswith("-"):
            words.append(f"{name}={_public_value(name, value)}")
            flag = ""
        else:
            words.append(_public_value(flag, word))
            flag = ""
    return tuple(words)


def public_url(url: str) -> str:
    """Return a URL without user, password, query and fragment; a host without a scheme stays as it is."""
    if "://" not in url:
        return url.rpartition("@")[2].partition("?")[0]
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def shell_line(command: Sequence[str]) -> str:
    """Return a command as one line that a shell accepts."""
    return shlex.join(command)


def _public_value(flag: str, value: str) -> str:
    name = flag.lower()
    if flag in _HEADER_FLAGS:
        return f"{value.partition(':')[0]}: {HIDDEN}"
    if any(word in name for word in _SECRET_WORDS) and not name.endswith(_PUBLIC_ENDINGS):
        return HIDDEN
    if "://" in value or "@" in value:
        return public_url(value)
    return value
