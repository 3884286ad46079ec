"""The initial command line and environment in this process's memory, which /proc shows to other processes."""

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

# Fields of /proc/self/stat, counted from the state: begin and end of arguments and environment.
_ARGUMENTS = slice(45, 47)
_ENVIRONMENT = slice(47, 49)


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
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    areas = [(int(fields[part][0]), int(fields[part][1])) for part in (_ARGUMENTS, _ENVIRONMENT)]
    return [(start, end) for start, end in areas if start and end > start]
