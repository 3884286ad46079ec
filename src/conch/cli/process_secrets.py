"""Hide the secrets of this process from other processes: in its command line, initial environment and memory.

The initial command line and environment stay readable in /proc when a process changes its variables: the command line
for all users, the environment for processes of the same user, which include models' processes by default.
"""

import ctypes
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from conch.backends.child.conch_child.ipc import prctl
from conch.options.server_options import OWN_FLAGS

# Fields of /proc/self/stat, counted from the state: begin and end of arguments and environment.
_ARGUMENTS = slice(45, 47)
_ENVIRONMENT = slice(47, 49)


def hide_secrets(arguments: Sequence[str]) -> None:
    """Overwrite the values of secret flags where other processes can read them, and remove them from `os.environ`."""
    secrets = {flag.name for flag in OWN_FLAGS if flag.kind.secret}
    variables = [flag.variable for flag in OWN_FLAGS if flag.kind.secret and flag.variable in os.environ]
    values = [*_values(arguments, secrets), *(os.environ.pop(variable) for variable in variables)]
    if values:
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        for part in (_ARGUMENTS, _ENVIRONMENT):
            start, end = map(int, fields[part])
            _overwrite(start, end, values)


def protect_memory() -> None:
    """Prevent processes of the same user from reading memory, environment and descriptors; disable core dumps."""
    prctl.set_dumpable(False)


def _values(arguments: Sequence[str], secrets: set[str]) -> Iterator[str]:
    """Yield the values of secret flags, and the passwords in URLs."""
    flag = ""
    for word in arguments:
        name, equals, value = word[2:].partition("=") if word.startswith("--") else ("", "", word)
        if not equals and word.startswith("--"):
            flag = name
            continue
        if (name or flag) in secrets:
            yield value
        elif "@" in value and "://" in value:
            password = urlsplit(value).password
            if password:
                yield password
        flag = ""


def _overwrite(start: int, end: int, values: Sequence[str]) -> None:
    if not start or end <= start:
        return
    memory = ctypes.string_at(start, end - start)
    for value in sorted(values, key=len, reverse=True):
        secret = os.fsencode(value)
        at = memory.find(secret) if secret else -1
        while at >= 0:
            memory = memory[:at] + b"*" * len(secret) + memory[at + len(secret) :]
            ctypes.memset(start + at, ord("*"), len(secret))
            at = memory.find(secret)
