"""Hide the secrets of this process from other processes: in its command line, initial environment and memory.

The initial command line and environment stay readable in /proc when a process changes its variables: the command line
for all users, the environment for processes of the same user, which include models' processes by default.
"""

import ctypes
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from conch.base.http.credentials import url_secrets
from conch.server.backends.child.conch_child.ipc import prctl

if TYPE_CHECKING:
    from conch.base.command_line.flag_values import ValueKind


def hide_secrets(arguments: Sequence[str]) -> None:
    """Overwrite the values of secret flags where other processes can read them, and remove them from `os.environ`."""
    from conch.server.options.server_options import (
        OWN_FLAGS,  # takes time, which process 1 of a container need not wait
    )

    kinds = {flag.name: flag.kind for flag in OWN_FLAGS if flag.kind.secret or flag.kind.secret_settings}
    variables = [flag.variable for flag in OWN_FLAGS if flag.name in kinds and flag.variable in os.environ]
    values = [*_values(arguments, kinds), *(os.environ.pop(variable) for variable in variables)]
    if values:
        overwrite_values(values)


def protect_memory() -> None:
    """Prevent processes of the same user from reading memory, environment and descriptors; disable core dumps."""
    prctl.set_dumpable(False)


def _values(arguments: Sequence[str], kinds: Mapping[str, "ValueKind"]) -> Iterator[str]:
    """Yield the secret values of flags, and the secrets of URLs."""
    flag = ""
    for word in arguments:
        name, equals, value = word[2:].partition("=") if word.startswith("--") else ("", "", word)
        if not equals and word.startswith("--"):
            flag = name
            continue
        if (kind := kinds.get(name or flag)) is not None:
            yield from kind.secrets(value)
        else:
            yield from url_secrets(value)
        flag = ""


def overwrite_values(values: Sequence[str]) -> None:
    """Overwrite each occurrence of the values with asterisks."""
    for start, end in _areas():
        memory = ctypes.string_at(start, end - start)
        for value in sorted(values, key=len, reverse=True):
            secret = os.fsencode(value)
            at = memory.find(secret) if secret else -1
            while at >= 0:
                memory = memory[:at] + b"*" * len(secret) + memory[at + len(secret) :]
                ctypes.memset(start + at, ord("*"), len(secret))
                at = memory.find(secret)


def overwrite_command_line(title: bytes) -> None:
    """Replace the command line by `title`, and the environment by nothing."""
    for (start, end), text in zip(_areas(), (title, b""), strict=False):
        ctypes.memmove(start, text[: end - start].ljust(end - start, b"\0"), end - start)


def _areas() -> list[tuple[int, int]]:
    """Return begin and end of the arguments and of the environment, without empty ones."""
    return [(start, end) for start, end in prctl.text_areas() if start and end > start]
