"""Hide the secrets of this process from other processes: in its command line, initial environment and memory.

The initial command line and environment stay readable in /proc when a process changes its variables: the command line
for all users, the environment for processes of the same user, which include models' processes by default.
"""

import os
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from conch.server.backends.child.conch_child.ipc import prctl
from conch.server.commands.process_memory import overwrite_values
from conch.server.options.server_options import OWN_FLAGS


def hide_secrets(arguments: Sequence[str]) -> None:
    """Overwrite the values of secret flags where other processes can read them, and remove them from `os.environ`."""
    secrets = {flag.name for flag in OWN_FLAGS if flag.kind.secret}
    variables = [flag.variable for flag in OWN_FLAGS if flag.kind.secret and flag.variable in os.environ]
    values = [*_values(arguments, secrets), *(os.environ.pop(variable) for variable in variables)]
    if values:
        overwrite_values(values)


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
